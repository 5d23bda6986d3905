"""The compiled gradient of recurrent networks against autograd in float64."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.random_cases import number_of_cases

from fastmarl import RLModuleSpec
from fastmarl.core.native._ppo import VARIANTS, PPOGradient
from fastmarl.core.nets.dense_layers import NotDenseError
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.learning import PPOLearner, compiled_batch, ppo_loss
from fastmarl.learning.compiled_gradient import CompiledGradients
from fastmarl.learning.compiled_rows import LossOptions
from fastmarl.learning.dense_nets import gradient_of

ACTIONS = [gym.spaces.Discrete(4), gym.spaces.MultiDiscrete([3, 2]), gym.spaces.Box(-1, 1, (2,), np.float32)]
CASES = number_of_cases(12)


class Case:
    """A random default network with memory, and a batch of sequences."""

    def __init__(self, seed, *, kind=None, n=None, length=None):
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        drawn, action_space = str(rng.choice(["lstm", "gru"])), ACTIONS[rng.integers(3)]
        kind = kind or drawn
        size, n_obs = (int(rng.choice([1, 3, 8, 16, 33])) for _ in range(2))
        config = {
            f"use_{kind}": True,
            f"{kind}_cell_size": size,
            "fcnet_hiddens": [[], [7], [20, 16]][rng.integers(3)],
            "vf_share_layers": bool(rng.integers(2)),
            "head_fcnet_hiddens": [[], [5]][rng.integers(2)],
            "free_log_std": isinstance(action_space, gym.spaces.Box) and bool(rng.integers(2)),
        }
        space = gym.spaces.Box(-9, 9, (n_obs,), np.float32)
        self.module = RLModuleSpec(observation_space=space, action_space=action_space, model_config=config).build()
        n, length = n or int(rng.choice([1, 2, 11, 30])), length or int(rng.choice([1, 2, 9, 30]))
        self.options = {
            "vf_coeff": 0.5 * rng.integers(2),
            "kl_coeff": 0.7 * rng.integers(2),
            "vf_clip": None,
            "clip": 0.2,
        }
        states = map_struct(lambda leaf: torch.randn(n, *leaf.shape), self.module.get_initial_state())
        self.batch = {"obs": torch.randn(n, length, n_obs), "state_in": states}
        with torch.no_grad():
            logits = self.module.forward_train(self.batch)["action_dist_inputs"]
        self.batch["action_dist_inputs"] = logits + 0.2 * torch.randn_like(logits)
        policy = self.module.get_train_action_dist_cls().from_logits(self.batch["action_dist_inputs"])
        self.batch["actions"] = policy.sample()
        self.batch["action_logp"] = policy.logp(self.batch["actions"])
        self.batch |= {name: torch.randn(n, length) for name in ("advantages", "value_targets")}
        if rng.integers(2):
            self.batch["loss_mask"] = torch.rand(n, length) < 0.7
            self.batch["loss_mask"][0, -1] = True
            for name in ("action_logp", "advantages", "value_targets"):  # what does not count may be anything
                self.batch[name][~self.batch["loss_mask"]] = torch.nan

    def by_autograd(self, numbers):
        """Return the gradient of these sequences, by name."""
        module = copy.deepcopy(self.module).double()
        rows = {name: map_struct(lambda leaf: leaf[numbers], column) for name, column in self.batch.items()}
        rows = {name: map_struct(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, column)
                for name, column in rows.items()}  # fmt: skip
        ppo_loss(module, rows, **self.options).backward()
        return {
            name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in module.named_parameters()
        }

    def compiled(self, numbers):
        """Return the gradient by compiled code, by name."""
        module = self.module
        gradients = {each: torch.full_like(each, torch.nan) for each in module.parameters()}
        rows = CompiledGradients(module, gradients).rows(self.batch, LossOptions(entropy_coeff=0.01, **self.options))
        rows.compute(numbers)
        return {name: gradients[each] if each in set(rows.trained) else torch.zeros_like(each)
                for name, each in module.named_parameters()}  # fmt: skip


def assert_close(got, want):
    size = max(1e-5, *(float(each.abs().max()) for each in want.values()))
    for name, gradient in want.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-4, atol=2e-5 * size, err_msg=name)


@pytest.fixture(params=VARIANTS)
def variant(request, monkeypatch):
    def make(*args, **kwargs):
        return gradient_of(*args, **kwargs, variant=request.param)

    monkeypatch.setattr(compiled_batch, "gradient_of", make)
    return request.param


@pytest.mark.parametrize("seed", range(CASES))
def test_gradients_are_those_of_autograd(variant, seed):
    case = Case(seed)
    numbers = torch.randperm(len(case.batch["actions"]))
    assert_close(case.compiled(numbers), case.by_autograd(numbers))


def test_columns_that_the_loss_does_not_read_may_have_any_shape(variant):
    """As in the whole result of `sequences()`."""
    case, numbers = Case(3, n=6, length=5), torch.arange(6)
    case.batch |= {"seq_lens": torch.full((6,), 5), "final_obs": torch.randn(6, 2), "t": torch.zeros(6, 5, 3)}
    case.batch["state_out"] = case.batch["state_in"]
    assert_close(case.compiled(numbers), case.by_autograd(numbers))


def test_sequences_without_steps_are_left_to_autograd():
    case = Case(3, n=4, length=2)
    for name, column in case.batch.items():
        if name != "state_in":
            case.batch[name] = column[:, :0]
    gradients = {each: torch.zeros_like(each) for each in case.module.parameters()}
    with pytest.raises(NotDenseError, match="no steps"):
        CompiledGradients(case.module, gradients).rows(case.batch, LossOptions(entropy_coeff=0.01, **case.options))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_blocks_of_sequences_add_up(variant, kind):
    """More sequences than any block has, some of them twice, and fewer in the last one."""
    case = Case(3, n=50, length=6, kind=kind)
    numbers = torch.randint(0, 50, (701,))
    assert_close(case.compiled(numbers), case.by_autograd(numbers))


def test_lengths_may_change():
    """Longer sequences need more memory, shorter ones another order of rows."""
    module, numbers = Case(5).module, torch.arange(20)
    gradients = {each: torch.zeros_like(each) for each in module.parameters()}
    compiled = CompiledGradients(module, gradients)
    for length in (3, 40, 1, 7):
        case = Case(5, n=20, length=length)
        case.module = module
        compiled.rows(case.batch, LossOptions(entropy_coeff=0.01, **case.options)).compute(numbers)
        assert_close({name: gradients[each] for name, each in module.named_parameters()}, case.by_autograd(numbers))


def test_frozen_cells_get_no_gradient():
    case = Case(2, n=5, length=4)
    frozen = [each for name, each in case.module.named_parameters() if "_hh_" in name or name.startswith("vf_trunk")]
    for each in frozen:
        each.requires_grad_(False)
    learner = PPOLearner(case.module, lr=0.1, **case.options)
    before = [each.clone() for each in frozen]
    learner.update(case.batch)
    assert learner.backend == "compiled" and frozen
    assert all(torch.equal(each, old) for each, old in zip(frozen, before, strict=True))


def test_batches_without_states_are_left_to_autograd():
    """Which says what is missing."""
    case = Case(7, n=4, length=3)
    learner = PPOLearner(case.module, **case.options)
    with pytest.raises(KeyError):
        learner.update({name: column for name, column in case.batch.items() if name != "state_in"})
    assert learner.backend.startswith("autograd: its state ")


def test_arguments_are_checked():
    weight = np.ones((4, 1), np.float32)
    layers = [(-1, weight, None, "linear", 1.0, None, None, ("lstm", weight, None, None, None))]
    net = PPOGradient(1, layers, 0, -1, sizes=[1])
    state, obs, order = np.ones((2, 1), np.float32), np.ones((6, 1), np.float32), np.arange(2)
    rows = np.ones((6, net.width), np.float32)
    options = {"clip": 0.2, "value_coeff": 0.0, "entropy_coeff": 0.0}
    net.compute(obs, rows, order, length=3, states=[state, state], **options)
    bad = (None, [state], [state] * 3, [state, state[:1]], [state, state.astype(np.float64)], [state, None])
    for length, states in [(3, each) for each in bad] + [(length, [state] * 2) for length in (0, 2, 4)]:
        with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
            net.compute(obs, rows, order, length=length, states=states, **options)
    with pytest.raises(ValueError, match="expected float32"):
        PPOGradient(1, [(*layers[0][:-1], ("gru", weight, None, None, None))], 0, -1, sizes=[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_values_that_are_not_finite_are_noticed(variant, kind, bad):
    case = Case(11, n=6, length=5, kind=kind)
    for _, leaf in flatten_struct(case.batch["state_in"]):
        leaf[3, 0] = bad
    assert not all(torch.isfinite(each).all() for each in case.compiled(torch.arange(6)).values())

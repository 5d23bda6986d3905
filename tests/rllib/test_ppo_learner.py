"""PPOTorchLearner is bit-identical to RLlib's in weights, optimizers, results and random draws after some updates."""

import copy

import pytest
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentPendulum
from support.exhaustive import params
from support.ppo_learners import (
    CASES,
    RECURRENT,
    assert_same,
    assert_same_state,
    by_one,
    computed_directly,
    learner_of,
    sampled,
    update,
    updated,
)
from torch import nn

from fastmarl.rllib import PPOTorchLearner
from fastmarl.rllib.learner import adam
from fastmarl.rllib.learner.module_gradient import ModuleGradient

N_ACTIONS = 2  # of MultiAgentCartPole

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own


ALL_CASES = {
    **CASES,
    "one epoch": {"num_epochs": 1},
    "minibatches of one row": {"minibatch_size": 1, "num_epochs": 1},
    "minibatches of two rows": {"minibatch_size": 2, "num_epochs": 1},
    "no critic": {"use_critic": False, "use_gae": False},
    "large": {"model": {"fcnet_hiddens": [256, 256], "vf_share_layers": False}, "minibatch_size": 128},
    "Box actions, one module": {"env": MultiAgentPendulum, "mapping": by_one, "to_train": ["p0"]},
    "LSTM": {"model": RECURRENT},
}
BY_AUTOGRAD = (  # all gradients
    *("minibatches larger than the batch", "minibatches of one row", "no critic"),
    *("Box actions", "Box actions, one module", "LSTM"),
)


# They reach each line and branch of the learner that all cases reach.
KEPT = (
    *("plain", "not shuffled", "whole batches", "one epoch", "one module for all", "Box actions, one module", "LSTM"),
    *("own layers for values", "no critic", "no KL", "much KL, narrow clips", "clipped by value", "logged gradients"),
    *("learning rate schedule", "ReLU, three layers", "SiLU in heads", "ELU", "GELU"),
)


@pytest.mark.parametrize("name", params(ALL_CASES, KEPT))
def test_updates_are_the_same(name):
    calls = sampled(ALL_CASES[name])[:2]
    want = updated(RLlibLearner, ALL_CASES[name], calls)
    with computed_directly() as computed:
        assert_same(want, updated(PPOTorchLearner, ALL_CASES[name], calls))
    assert all(computed)
    assert (len(computed) > 2 * len(calls)) == (name not in BY_AUTOGRAD)


@pytest.mark.parametrize("is_wrong", [lambda n: True, lambda n: n == 1], ids=["always", "at first"])
def test_gradients_of_other_bits_are_left_to_autograd(is_wrong, monkeypatch):
    """As if this torch on this machine rounded otherwise."""
    backward, n_calls = ModuleGradient.backward, 0

    def off_by_a_bit(net):
        nonlocal n_calls
        backward(net)
        n_calls += 1
        if is_wrong(n_calls):
            first = next(iter(net.gradients.values()))
            first[0] = torch.nextafter(first[0], torch.full_like(first[0], torch.inf))

    calls = sampled({})
    want = updated(RLlibLearner, {}, calls)
    monkeypatch.setattr(ModuleGradient, "backward", off_by_a_bit)
    assert_same(want, updated(PPOTorchLearner, {}, calls))
    assert n_calls >= len(calls)


def test_gradients_of_zeros_are_not_relied_on(monkeypatch):
    """Without advantages, those of the policy's head are 0, whatever computes them; the next ones are wrong."""
    backward = ModuleGradient.backward

    def too_large(net):
        backward(net)
        for gradient in net.gradients.values():
            if len(gradient) == N_ACTIONS:
                gradient *= 1.5

    def without_advantages(kind):
        class WithoutAdvantages(kind):
            def _make_batch_if_necessary(self, training_data):
                batch = super()._make_batch_if_necessary(training_data)
                for rows in batch.policy_batches.values():
                    rows[Postprocessing.ADVANTAGES] = rows[Postprocessing.ADVANTAGES].clone()
                    rows[Postprocessing.ADVANTAGES][:64] = 0
                return batch

        return WithoutAdvantages

    calls, options = sampled({}), {"use_kl_loss": False, "shuffle_batch_per_epoch": False}
    want = updated(without_advantages(RLlibLearner), options, calls)
    monkeypatch.setattr(ModuleGradient, "backward", too_large)
    assert_same(want, updated(without_advantages(PPOTorchLearner), options, calls))


def test_a_module_that_was_put_into_evaluation_mode_trains():
    def changed(kind):
        class Changed(kind):
            def before_gradient_based_update(self, *, timesteps):
                super().before_gradient_based_update(timesteps=timesteps)
                self.module["p1"].pi.eval()

        return Changed

    calls = sampled({})
    ours = updated(changed(PPOTorchLearner), {}, calls)
    assert_same(updated(changed(RLlibLearner), {}, calls), ours)
    assert ours[0].module["p1"].pi.training


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("skips", [False, True])
def test_gradients_that_are_not_finite(bad, skips):
    def changed(kind):
        class Changed(kind):
            n = 0

            def postprocess_gradients(self, gradients_dict):
                gradients = super().postprocess_gradients(gradients_dict)
                Changed.n += 1
                if Changed.n % 3 == 0:
                    next(iter(gradients.values()))[0, 0] = bad
                return gradients

        return Changed

    calls = sampled({})

    def run(kind):
        learner, _ = learner_of(changed(kind), {})
        learner.config._is_frozen = False
        learner.config.torch_skip_nan_gradients = skips
        for episodes in calls[:2]:
            update(learner, episodes)
        return learner

    assert_same_state(run(RLlibLearner), run(PPOTorchLearner))


def test_stats_are_reported_after_a_failed_update():
    (episodes, *_), (learner, _) = sampled({}), learner_of(PPOTorchLearner, {})
    learner.apply_gradients = lambda gradients: 1 / 0
    with pytest.raises(ZeroDivisionError):
        update(learner, episodes)
    del learner.apply_gradients
    found = learner.update(episodes=copy.deepcopy(episodes), num_epochs=1, minibatch_size=None)
    assert "policy_loss" in found["p0"]


# Adam.


def optimizers_of(shapes, **options):
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        found.append(torch.optim.Adam(parameters, lr=0.05, **options))
    return found


def assert_steps_are_the_same(shapes, n_steps=6, change=lambda optimizer, k: None, **options):
    want, got = optimizers_of(shapes, **options)
    for k in range(n_steps):
        for ours, theirs in zip(got.param_groups[0]["params"], want.param_groups[0]["params"], strict=True):
            ours.grad = torch.randn_like(ours) * 10.0 ** (k - 3)
            theirs.grad = ours.grad.clone()
        for optimizer in (want, got):
            change(optimizer, k)
        want.step()
        adam.step(got)
    assert str(want.state_dict()) == str(got.state_dict())
    for ours, theirs in zip(got.param_groups[0]["params"], want.param_groups[0]["params"], strict=True):
        assert torch.equal(ours, theirs)
        for name in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(got.state[ours][name], want.state[theirs][name])


def test_this_torch_rounds_as_we_do():
    assert adam.is_exact()


@pytest.mark.parametrize("shapes", [[()], [(1,)], [(0,)], [(3, 5), (7,)], [(256, 256), (33,), (1, 1, 9)]], ids=str)
def test_adam_of_all_sizes(shapes):
    assert_steps_are_the_same(shapes)


@pytest.mark.parametrize(
    "options",
    [{"betas": (0.5, 0.9)}, {"eps": 1e-3}, {"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True},
     {"foreach": True}, {"lr": torch.tensor(0.1)}],
    ids=str,
)  # fmt: skip
def test_adam_with_other_options(options):
    if "lr" in options:
        want, got = optimizers_of([(9,)])
        for optimizer in (want, got):
            optimizer.param_groups[0]["lr"] = options["lr"]
            optimizer.param_groups[0]["params"][0].grad = torch.ones(9)
        want.step()
        adam.step(got)
        assert torch.equal(want.param_groups[0]["params"][0], got.param_groups[0]["params"][0])
    else:
        assert_steps_are_the_same([(9, 4), (5,)], **options)


def test_adam_with_a_learning_rate_that_changes():
    def change(optimizer, k):
        optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)

    assert_steps_are_the_same([(9, 4), (5,)], change=change)


def test_adam_of_parameters_that_have_made_different_numbers_of_steps():
    def change(optimizer, k):
        if k == 0:
            optimizer.param_groups[0]["params"][1].grad = None

    assert_steps_are_the_same([(9, 4), (5,)], change=change)


def test_adam_hooks_are_called():
    calls = []

    def change(optimizer, k):
        if k == 2:
            optimizer.register_step_post_hook(lambda *arguments: calls.append(k))

    assert_steps_are_the_same([(4,)], change=change)
    assert len(calls) == 2 * 4


def test_backward_raises_if_a_step_has_changed_a_parameter():
    _, optimizer = optimizers_of([(4,)])
    (parameter,) = optimizer.param_groups[0]["params"]
    for _ in range(2):
        parameter.grad = torch.ones(4)
        adam.step(optimizer)
    product = (parameter * parameter).sum()
    parameter.grad = torch.ones(4)
    adam.step(optimizer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()

"""PPOLearner where callers, numbers or interrupts do what they should not."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.interrupts import in_own_thread, interrupt_lines, lines_of
from support.ppo import BOX_ACTIONS, N, both, make_batch, make_module
from torch import nn

from fastmarl.errors import BatchError, ConfigError
from fastmarl.learning import PPOLearner, compiled_rows, ppo_learner
from fastmarl.learning.adam import limit_norm

FAR = [0.0, 1e3, 1e5]
MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "another device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def assert_refused(learner, batch, error, message):
    """And nothing is changed."""
    before, moments = learner.parameters.detach().clone(), copy.deepcopy(learner.optimizer.state_dict())
    with pytest.raises(error, match=message):
        learner.update(batch)
    assert torch.equal(learner.parameters, before)
    torch.testing.assert_close(learner.optimizer.state_dict(), moments)


# The module and the optimizer.


@pytest.mark.parametrize("hiddens", [[3], [90]])
@pytest.mark.parametrize("compiled", [True, False])
def test_an_optimizer_of_another_module(hiddens, compiled):
    """Its moments have another size, and would be read and written beyond their end."""
    module, other = make_module(), make_module(fcnet_hiddens=hiddens)
    batch = make_batch(module)
    learner, of_other = PPOLearner(module, compiled=compiled), PPOLearner(other)
    learner.update(batch)
    of_other.update(batch)
    learner.optimizer.load_state_dict(of_other.optimizer.state_dict())
    assert_refused(learner, batch, ConfigError, "'exp_avg' has shape")


def test_layers_that_are_replaced():
    module = make_module()
    batch = make_batch(module)
    learner = PPOLearner(module)
    learner.update(batch)
    module.pi = nn.Linear(8, 4)
    assert_refused(learner, batch, ConfigError, "create a new PPOLearner")
    again = PPOLearner(module)
    again.update(batch)
    assert again.backend == "compiled"


def test_parameters_that_are_freed():
    module = make_module()
    module.pi.weight.requires_grad_(False)
    batch = make_batch(module)
    learner = PPOLearner(module)
    learner.update(batch)
    module.pi.weight.requires_grad_(True)
    assert_refused(learner, batch, ConfigError, "create a new PPOLearner")


def test_hooks_that_come_later():
    module = make_module()
    batch = make_batch(module)
    learner, called = PPOLearner(module, epochs=1, num_minibatches=1), []
    for register in (module.pi.weight.register_hook, module.pi.register_full_backward_hook):
        handle = register(lambda *arguments: called.append(1))
        learner.update(batch)
        assert "hooks" in learner.backend
        handle.remove()
        learner.update(batch)
        assert learner.backend == "compiled"
    assert called == [1, 1]


def test_weights_that_are_not_finite():
    module = make_module()
    batch = make_batch(module)
    learner = PPOLearner(module)
    learner.update(batch)
    with torch.no_grad():
        learner.parameters[7] = torch.nan
    with pytest.raises(BatchError, match="check the weights"):
        learner.update(batch)


# Where it is called.


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_the_caller(mode):
    if mode == "another device" and torch.__version__ < (2, 13):
        pytest.skip("torch's own Adam counts its steps on that device")
    module = make_module()
    batch = make_batch(module)
    learners = both(module)
    for learner in learners:
        for _ in range(2):
            with MODES[mode]():
                learner.update(batch)
    assert learners[0].backend == ("autograd: torch.autocast is on" if mode == "autocast" else "compiled")
    ours, theirs = (learner.parameters.detach() for learner in learners)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_learners_in_threads():
    """Compiled code runs without the GIL, in memory of its own for each learner."""
    modules = [make_module(fcnet_hiddens=[40 + k]) for k in range(6)]
    batches = [make_batch(module, 2000, seed=k) for k, module in enumerate(modules)]

    def train(module, batch):
        learner = PPOLearner(module, generator=torch.Generator().manual_seed(0))
        for _ in range(3):
            learner.update(batch)
        return learner.parameters.detach()

    alone = [train(copy.deepcopy(module), batch) for module, batch in zip(modules, batches, strict=True)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(train, modules, batches))
    for ours, theirs in zip(together, alone, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("n_before", "rows_of_part"), [(0, 600), (1, 600), (1, 20)], ids=["new", "used", "in parts"])
@in_own_thread
def test_interrupts(monkeypatch, n_before, rows_of_part):
    """At any line they leave the parameters after a whole number of steps, and a learner that goes on."""
    monkeypatch.setattr(compiled_rows, "ROWS_OF_PART", rows_of_part)
    batch = make_batch(make_module())

    def make():
        options = {"lr": 0.01, "epochs": 1, "num_threads": 2, "generator": torch.Generator().manual_seed(0)}
        learner = PPOLearner(make_module(), **options)
        for _ in range(n_before):
            learner.update(batch)
        return learner

    stepwise, whole, steps = make(), make(), []

    def noted(gradient, most):
        steps.append(stepwise.parameters.detach().clone())
        return limit_norm(gradient, most)

    with monkeypatch.context() as patch:
        patch.setattr(ppo_learner, "limit_norm", noted)
        stepwise.update(batch)
    lines = lines_of(lambda: whole.update(batch))
    steps.append(stepwise.parameters.detach())

    def try_line(interruption):
        learner = make()
        interruption.run(lambda: learner.update(batch))
        assert any(torch.equal(learner.parameters, step) for step in steps)
        learner.update(batch)
        assert learner.backend == "compiled"

    # The first update of all runs lines that later ones don't, and other threads may take parts.
    interrupt_lines(try_line, lines, np.random.default_rng(0), n_lines=60, may_miss=True)


# Numbers.


@pytest.mark.parametrize("shape", [(N,), (N, 1), (N, 3)])
def test_actions_of_another_shape(shape):
    """torch would spread some of them."""
    learner = PPOLearner(make_module(actions=BOX_ACTIONS))
    batch = {**make_batch(learner.module), "actions": torch.zeros(shape)}
    assert_refused(learner, batch, BatchError, r"of shape \(210, 2\) in rows")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([3, 2]), gym.spaces.MultiBinary(2)], ids=str
)
@pytest.mark.parametrize("action", [-1, 3])
def test_actions_out_of_range(space, action, compiled):
    """Some distributions would give such actions a probability."""
    learner = PPOLearner(make_module(actions=space), compiled=compiled)
    batch = make_batch(learner.module)
    batch["actions"].view(N, -1)[3, -1] = action
    assert_refused(learner, batch, BatchError, "expected actions >= 0 and <")


@pytest.mark.parametrize("compiled", [True, False])
def test_actions_that_are_not_numbers(compiled):
    learner = PPOLearner(make_module(), compiled=compiled)
    batch = make_batch(learner.module)
    batch["actions"] = batch["actions"].float()
    batch["actions"][3] = torch.nan
    assert_refused(learner, batch, BatchError, "expected actions >= 0")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("action", [1.7, -0.5, 2 + 0j])
def test_actions_that_are_no_whole_numbers(action, compiled):
    learner = PPOLearner(make_module(), compiled=compiled)
    batch = make_batch(learner.module)
    batch["actions"] = torch.full((N,), action)
    assert_refused(learner, batch, BatchError, "expected .*actions")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.float64])
def test_actions_of_other_dtypes(dtype):
    """They are the same numbers."""
    found = []
    for compiled in (True, False):
        learner = PPOLearner(make_module(), compiled=compiled, generator=torch.Generator().manual_seed(0))
        batch = make_batch(learner.module)
        learner.update({**batch, "actions": batch["actions"].to(dtype)})
        found.append(learner.parameters.detach())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_a_learner_made_in_inference_mode():
    module = make_module()
    with torch.inference_mode():
        learner = PPOLearner(module)
    learner.update(make_batch(module))
    assert learner.backend == "compiled"


def test_columns_that_were_computed_with_gradients_or_are_integers():
    """They are data: no gradient flows into what they were computed from."""
    module = make_module()
    batch = make_batch(module)
    weight = nn.Parameter(torch.ones(()))
    batch["advantages"], batch["value_targets"] = batch["advantages"] * weight, batch["value_targets"].round().long()
    found = [learner.update(batch) for learner in both(module, epochs=2)]
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-4) and weight.grad is None


@pytest.mark.parametrize("name", ["epochs", "num_minibatches", "minibatch_size", "num_threads"])
@pytest.mark.parametrize("value", [0, 2.5, math.nan])
def test_sizes_out_of_range(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be (at least 1|a whole number), got {value}"):
        PPOLearner(make_module(), **{name: value})


@pytest.mark.parametrize("name", ["clip", "vf_coeff", "vf_clip", "entropy_coeff", "kl_coeff", "max_grad_norm"])
@pytest.mark.parametrize("value", [-0.1, math.nan, -math.inf])
def test_options_out_of_range(name, value):
    if name == "entropy_coeff" and value == -0.1:  # which makes policies more certain
        assert PPOLearner(make_module(), entropy_coeff=value).entropy_coeff == value
        return
    with pytest.raises(ConfigError, match=f"{name} must be .*, got {value}"):
        PPOLearner(make_module(), **{name: value})
    learner = PPOLearner(make_module())
    setattr(learner, name, value)
    assert_refused(learner, make_batch(learner.module), ConfigError, f"{name} must be")


@pytest.mark.parametrize("n", [1, N])
@pytest.mark.parametrize("far", FAR)
def test_explained_variance_far_from_zero(far, n):
    """The variance is tiny beside the squares."""
    module = make_module()
    batch = make_batch(module, n)
    batch["value_targets"] += far
    found = [learner.update(batch)["vf_explained_var"] for learner in both(module, lr=1e-5)]
    assert found[0] == pytest.approx(found[1], abs=2e-3)


def test_padding_where_densities_are_large():
    """The probability of what padding holds may overflow, but does not count."""
    module = make_module(actions=gym.spaces.Box(-1, 1, (20,), np.float32), free_log_std=True)
    with torch.no_grad():
        for parameter in module.pi.parameters():
            parameter.zero_()
        module.pi[-1].log_std.fill_(-7)
    batch = make_batch(module)
    batch["loss_mask"] = torch.arange(N) % 2 == 0
    learners = both(module, lr=0.0, epochs=1, num_minibatches=1)
    for learner in learners:
        learner.update(batch)
    assert learners[0].backend == "compiled"
    ours, theirs = (learner.parameters.grad for learner in learners)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)

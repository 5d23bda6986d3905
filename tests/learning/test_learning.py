"""`fastmarl.learning`: each function against a plain version."""

import io
import os
import pickle
import subprocess
import sys
import warnings
from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_cases import number_of_cases

import fastmarl
from fastmarl.batches import add_gae, columns, sequences
from fastmarl.errors import BatchError, ConfigError, ModuleOutputError
from fastmarl.learning import ValueNorm, flat_parameters, make_value_fn, minibatches, normalized, ppo_loss, to_tensors

OBS_SPACE = gym.spaces.Box(-1, 1, (5,), np.float32)


def make_module(action_space=None, **model_config):
    torch.manual_seed(3)
    spec = fastmarl.RLModuleSpec(
        observation_space=OBS_SPACE,
        action_space=action_space or gym.spaces.Discrete(4),
        model_config={"fcnet_hiddens": [8, 8], **model_config},
    )
    return spec.build()


def make_rows(module, *shape, seed=0):
    """A minibatch that the module has sampled."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.rand(*shape, 5, generator=generator)
    inputs = {"obs": obs}
    if module.is_stateful():
        state = module.get_initial_state()
        inputs["state_in"] = {name: torch.zeros(shape[0], *np.shape(leaf)) for name, leaf in state.items()}
    with torch.no_grad():
        outputs = module.forward_train(inputs)
        distribution = module.get_train_action_dist_cls().from_logits(outputs["action_dist_inputs"])
        actions = distribution.sample()
        return {
            **inputs,
            "actions": actions,
            "action_logp": distribution.logp(actions) + torch.randn(shape, generator=generator) / 5,
            "advantages": torch.randn(shape, generator=generator),
            "value_targets": torch.randn(shape, generator=generator),
        }


# Flat parameters.

OPTIMIZERS = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=False),
    "Adam, fused": lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
    "Adam, foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
}
ZEROING = {
    "optimizer": lambda module, optimizer: optimizer.zero_grad(),
    "optimizer, in place": lambda module, optimizer: optimizer.zero_grad(set_to_none=False),
    "module": lambda module, optimizer: module.zero_grad(),
    "module, in place": lambda module, optimizer: module.zero_grad(set_to_none=False),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("zero", ZEROING)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_an_optimizer_of_flat_parameters_takes_the_same_steps(kind, zero, max_norm):
    plain, flat_module = make_module(), make_module()
    flat = flat_parameters(flat_module)
    optimizers = [OPTIMIZERS[kind](plain.parameters()), OPTIMIZERS[kind]([flat])]
    for seed in range(5):
        rows = make_rows(plain, 16, seed=seed)
        for module, optimizer in zip((plain, flat_module), optimizers, strict=True):
            ZEROING[zero](module, optimizer)
            ppo_loss(module, rows).backward()
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_([flat] if module is flat_module else plain.parameters(), max_norm)
            optimizer.step()
        for one, other in zip(plain.parameters(), flat_module.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert not torch.equal(flat, flat_parameters(make_module()))


def test_gradients_accumulate_until_they_are_zeroed():
    module = make_module()
    flat = flat_parameters(module)
    rows, found = make_rows(module, 4), []
    for _ in range(2):
        ppo_loss(module, rows).backward()
        found.append(torch.cat([p.grad.ravel() for p in module.parameters()]))
        assert torch.equal(flat.grad, found[-1]) and found[-1].abs().sum() > 0
    torch.testing.assert_close(found[1], 2 * found[0])
    flat.grad = None
    assert flat.grad is None and not any(p.grad.any() for p in module.parameters())


def test_a_module_with_flat_parameters_is_used_as_before():
    module = make_module()
    frozen = next(module.parameters())
    frozen.requires_grad_(False)
    before = deepcopy(module.state_dict())
    flat = flat_parameters(module)
    assert flat.shape == (sum(p.numel() for p in module.parameters()) - frozen.numel(),)
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
    other = make_module()
    for parameter in other.parameters():
        torch.nn.init.ones_(parameter)
    module.load_state_dict(other.state_dict())
    assert bool((flat == 1).all())
    with torch.no_grad():
        flat.fill_(2)
    assert all(bool((p == 2).all()) for p in module.parameters() if p is not frozen)
    copy = deepcopy(module)
    with torch.no_grad():
        flat.fill_(3)
    assert all(bool((p == 2).all()) for p in copy.parameters() if p.requires_grad)
    with pytest.raises(TypeError, match="copy the module"):
        deepcopy(flat)


def test_a_runner_acts_with_each_step():
    config = fastmarl.EnvRunnerConfig(env="fastmarl.cart_pole", env_config={"num_agents": 2}, num_envs_per_env_runner=2)
    runner = fastmarl.MultiAgentEnvRunner(config)
    runner.sample(num_timesteps=10)
    module = runner.module["default_policy"]
    flat = flat_parameters(module)
    for value in (0.0, 0.01):
        with torch.no_grad():
            flat.fill_(value)
        batch = columns(runner.sample(num_timesteps=10))["default_policy"]
        with torch.no_grad():
            outputs = module.forward_train({"obs": torch.from_numpy(batch["obs"])})
        np.testing.assert_allclose(batch["vf_preds"], outputs["vf_preds"].numpy(), rtol=1e-4, atol=1e-6)
        assert bool(batch["vf_preds"].any()) == (value > 0)
    runner.stop()


def test_parameters_that_cant_be_flat():
    with pytest.raises(ConfigError, match="got none"):
        flat_parameters(torch.nn.ReLU())
    mixed = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
    with pytest.raises(ConfigError, match=r"torch.float32 on cpu', 'torch.float64 on cpu"):
        flat_parameters(mixed)
    tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    tied[1].weight.data = tied[0].weight.data
    with pytest.raises(ConfigError, match=r"share memory, 0\.weight and 1\.weight; tie them by"):
        flat_parameters(tied)


@pytest.mark.parametrize("move", [flat_parameters, lambda module: module.double()], ids=["flat again", "double"])
def test_parameters_that_were_moved_are_not_left_behind_in_silence(move):
    module = make_module()
    optimizer = torch.optim.Adam([flat_parameters(module)], fused=True)
    move(module)
    for call in (optimizer.zero_grad, optimizer.step):
        with pytest.raises(ConfigError, match="call flat_parameters"):
            call()


@pytest.mark.parametrize(("change", "text"), [
    (lambda module: setattr(module[0], "weight", torch.nn.Parameter(torch.zeros(3, 3))),
     "'weight' of the flat parameters no longer belongs to its module"),
    (lambda module: module.load_state_dict(deepcopy(module.state_dict()), assign=True),
     "'weight' of the flat parameters no longer belongs to its module"),
    (lambda module: module[0].weight.requires_grad_(False), "'weight' was frozen"),
], ids=["replaced", "assigned", "frozen"])  # fmt: skip
def test_parameters_replaced_or_frozen_since_flattening_are_errors(change, text):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.Adam([flat_parameters(module)])
    module(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()
    change(module)
    for call in (optimizer.zero_grad, optimizer.step):
        with pytest.raises(ConfigError, match=f"{text}.*call flat_parameters"):
            call()
    optimizer = torch.optim.Adam([flat_parameters(module)])
    before = deepcopy(module.state_dict())
    module(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()
    moved = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def two_heads():
    torch.manual_seed(2)
    return torch.nn.ModuleList([torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)])


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("n_tensors", [1, 2])
def test_parameters_without_gradient_stay(kind, n_tensors):
    """With a tensor for each head, all else is as in torch, too."""
    plain, net = two_heads(), two_heads()
    flats = [flat_parameters(net)] if n_tensors == 1 else [flat_parameters(head) for head in net]
    optimizers = [OPTIMIZERS[kind](plain.parameters()), OPTIMIZERS[kind](flats)]
    for step, head in enumerate((0, 0, 1, 1, 0)):
        for module, optimizer in zip((plain, net), optimizers, strict=True):
            before = deepcopy(module[1 - head].state_dict())
            optimizer.zero_grad()
            module[head](torch.ones(1, 4)).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(flats if module is net else module.parameters(), 0.5)
            optimizer.step()
            assert all(torch.equal(value, before[name]) for name, value in module[1 - head].state_dict().items())
        if n_tensors == 2 or step < 2:
            for one, other in zip(plain.parameters(), net.parameters(), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_gradients_from_before_stay():
    net = two_heads()
    net[0](torch.ones(1, 4)).square().sum().backward()
    before = [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in net.parameters()]
    flat = flat_parameters(net)
    assert torch.equal(flat.gradient, torch.cat([each.flatten() for each in before]))


def test_gradients_that_are_set_reach_all_parameters():
    net = two_heads()
    flat = flat_parameters(net)
    optimizer = torch.optim.Adam([flat], lr=0.1)
    net[0](torch.ones(1, 4)).sum().backward()
    flat.grad = torch.ones(len(flat))
    before = flat.detach().clone()
    optimizer.step()
    assert (flat != before).all()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_graphs_from_before_a_step_are_refused(kind):
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    flat = flat_parameters(net)
    optimizer = OPTIMIZERS[kind]([flat])

    @torch.no_grad()
    def set_all():
        flat[:] = 0.5

    for write in (optimizer.step, optimizer.step, set_all):
        early = net(torch.ones(4, 3)).sum()
        net(torch.ones(4, 3)).square().sum().backward()
        write()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(early, net[0].weight)


@pytest.mark.parametrize(
    "write",
    [
        lambda flat: flat.mul_(0.5),
        lambda flat: torch.mul(flat.detach().clone(), 0.5, out=flat),
        lambda flat: torch._foreach_mul_([flat], 0.5),
        lambda flat: torch._foreach_copy_([flat], [flat.detach() * 0.5]),
    ],
)
def test_writes_outside_steps_reach_all_parameters(write):
    """Also after an optimizer has looked at the gradients, and graphs from before are refused."""
    module = make_module()
    flat = flat_parameters(module)
    optimizer = torch.optim.Adam([flat])
    optimizer.zero_grad()
    loss, expected = ppo_loss(module, make_rows(module, 4)), flat.detach() * 0.5
    with torch.no_grad():
        write(flat)
    assert torch.equal(flat.detach(), expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_initialisers_are_writes():
    module = make_module()
    flat = flat_parameters(module)
    loss = ppo_loss(module, make_rows(module, 4))
    torch.nn.init.constant_(flat, 0.25)
    assert all((each == 0.25).all() for each in module.parameters())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_with_a_graph_are_taken():
    module = make_module()
    flat = flat_parameters(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of torch, about a cycle
        ppo_loss(module, make_rows(module, 4)).backward(create_graph=True)
    expected = torch.cat([parameter.grad.detach().ravel() for parameter in module.parameters()])
    assert torch.equal(flat.grad, expected) and not flat.grad.requires_grad
    torch.optim.Adam([flat]).zero_grad()
    assert flat.grad is None and not flat.gradient.any()


@pytest.mark.parametrize("save", [pickle.dumps, lambda flat: torch.save(flat, io.BytesIO())])
def test_flat_parameters_are_not_saved_apart_from_their_module(save):
    with pytest.raises(TypeError, match="save the module"):
        save(flat_parameters(make_module()))


def test_shared_parameters_are_there_once():
    shared = torch.nn.Linear(3, 3)
    module = torch.nn.Sequential(shared, torch.nn.Tanh(), shared)
    flat = flat_parameters(module)
    assert len(flat) == 12
    module(torch.ones(2, 3)).sum().backward()
    assert flat.grad.abs().sum() > 0


# Minibatches.


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 3), st.integers(0, 99))
@settings(max_examples=number_of_cases(30))
def test_minibatches_are_the_rows_in_random_order(n, size, epochs, seed):
    batch = {
        "obs": {"a": torch.arange(n * 6, dtype=torch.float32).view(n, 2, 3), "b": (torch.arange(n), torch.rand(n))},
        "rewards": torch.rand(n),
        "flags": torch.rand(n) < 0.5,
        "empty": torch.zeros(n, 0),
        "half": torch.rand(n, 1).half(),
    }
    made = list(minibatches(batch, size, epochs, torch.Generator().manual_seed(seed)))
    orders = torch.Generator().manual_seed(seed)
    expected = [rows for _ in range(epochs) for rows in torch.randperm(n, generator=orders).split(size) if len(rows)]
    assert len(made) == len(expected)
    for got, rows in zip(made, expected, strict=True):
        assert got.keys() == batch.keys() and list(got["obs"]) == ["a", "b"] and isinstance(got["obs"]["b"], tuple)
        pairs = [(got["obs"]["a"], batch["obs"]["a"]), (got["obs"]["b"][0], batch["obs"]["b"][0]),
                 (got["obs"]["b"][1], batch["obs"]["b"][1]), (got["empty"], batch["empty"])]  # fmt: skip
        pairs += [(got[name], batch[name]) for name in ("rewards", "flags", "half")]
        for one, column in pairs:
            assert one.dtype == column.dtype and torch.equal(one, column[rows])


@pytest.mark.parametrize(("batch", "size", "error", "text"), [
    ({}, 2, BatchError, "got none"),
    ({"a": np.zeros(3)}, 2, BatchError, r"ndarray at \('a',\); see to_tensors"),
    ({"a": torch.zeros(3), "b": {"c": torch.zeros(2)}}, 2, BatchError,
     r"3 on cpu at \('a',\), 2 on cpu at \('b', 'c'\)"),
    ({"a": torch.zeros(())}, 2, BatchError, "with rows"),
    ({"a": torch.zeros(3)}, 0, BatchError, "size >= 1"),
    ({"a": torch.zeros(3)}, 2.0, TypeError, "as an integer"),
])  # fmt: skip
def test_minibatches_of_invalid_batches_are_errors(batch, size, error, text):
    with pytest.raises(error, match=text):
        next(minibatches(batch, size))


def test_a_size_of_minibatches_may_be_a_number_of_numpy():
    assert len(next(minibatches({"a": torch.zeros(3)}, np.int64(2)))["a"]) == 2


# The loss.


def plain_loss(module, rows, clip, vf_coeff, vf_clip, entropy_coeff, kl_coeff=0.0):
    """Compute the loss row by row."""
    outputs = module.forward_train({name: rows[name] for name in ("obs", "state_in") if name in rows})
    distribution = module.get_train_action_dist_cls().from_logits(outputs["action_dist_inputs"])
    logp, entropy = distribution.logp(rows["actions"]).flatten(), distribution.entropy().flatten()
    former = module.get_train_action_dist_cls().from_logits(rows["action_dist_inputs"]) if kl_coeff else distribution
    divergence = former.kl(distribution).flatten()
    mask = rows.get("loss_mask", torch.ones(rows["advantages"].shape, dtype=torch.bool)).flatten()
    columns = (rows["action_logp"], rows["advantages"], rows["value_targets"], outputs["vf_preds"])
    losses = []
    for i, (before, advantage, target, value) in enumerate(zip(*(c.flatten() for c in columns), strict=True)):
        if not mask[i]:
            continue
        ratio = torch.exp(logp[i] - before)
        gain = min(ratio * advantage, min(max(ratio, torch.tensor(1 - clip)), torch.tensor(1 + clip)) * advantage)
        error = (value - target) ** 2
        error = error if vf_clip is None else min(error, torch.tensor(vf_clip))
        losses.append(vf_coeff * error - gain - entropy_coeff * entropy[i] + kl_coeff * divergence[i])
    return sum(losses) / len(losses)


SPACES = [gym.spaces.Discrete(4), gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Box(-1, 1, (2,), np.float32)]
OPTIONS = [(0.2, 0.5, None, 0.01, 0.0), (0.05, 1.0, 0.3, 0.0, 0.7)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("model_config", [{}, {"use_lstm": True, "lstm_cell_size": 4}], ids=["flat", "lstm"])
def test_ppo_loss_and_its_gradient(space, model_config, options, masked):
    module = make_module(space, **model_config)
    shape = (3, 4) if model_config else (12,)
    rows = make_rows(module, *shape)
    if masked:
        rows["loss_mask"] = torch.rand(shape) < 0.6
        rows["value_targets"] = rows["value_targets"].masked_fill(~rows["loss_mask"], torch.nan)
    clip, vf_coeff, vf_clip, entropy_coeff, kl_coeff = options
    n_logits = module.get_train_action_dist_cls().required_input_dim(space)
    rows["action_dist_inputs"] = torch.randn(*shape, n_logits)
    options_of_loss = {"clip": clip, "vf_coeff": vf_coeff, "vf_clip": vf_clip}
    stats = {}
    loss = ppo_loss(module, rows, **options_of_loss, entropy_coeff=entropy_coeff, kl_coeff=kl_coeff, stats=stats)
    expected = plain_loss(module, rows, *options)
    torch.testing.assert_close(loss, expected)
    for got, want in zip(*(torch.autograd.grad(x, list(module.parameters())) for x in (loss, expected)), strict=True):
        assert torch.isfinite(got).all()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    names = {"policy_loss", "vf_loss", "vf_explained_var", "entropy", "kl", "clip_fraction"}
    assert stats.keys() == (names | {"mean_kl_loss"} if kl_coeff else names)
    counts = rows.get("loss_mask", torch.ones(rows["advantages"].shape, dtype=torch.bool)).numpy()
    values = module.forward_train({name: rows[name] for name in ("obs", "state_in") if name in rows})["vf_preds"]
    targets = rows["value_targets"].numpy()[counts]
    explained = max(-1, 1 - np.var(targets - values.detach().numpy()[counts]) / np.var(targets))
    assert stats["vf_explained_var"] == pytest.approx(explained, rel=1e-4, abs=1e-6)  # 1 - a / b in float32
    assert all(not value.requires_grad and torch.isfinite(value) for value in stats.values())
    total = stats["policy_loss"] + vf_coeff * stats["vf_loss"] - entropy_coeff * stats["entropy"]
    total = total + kl_coeff * stats.get("mean_kl_loss", 0.0)
    torch.testing.assert_close(total, loss.detach())


def test_without_a_weight_the_loss_needs_no_values():
    rows, stats = make_rows(make_module(), 12), {}
    rows["loss_mask"] = torch.rand(12) < 0.6
    expected = plain_loss(make_module(), rows, 0.2, 0.0, None, 0.01)
    del rows["value_targets"]
    actor = make_module()
    actor.vf = None
    assert "vf_preds" not in actor.forward_train(rows)
    torch.testing.assert_close(ppo_loss(actor, rows, clip=0.2, vf_coeff=0.0, entropy_coeff=0.01, stats=stats), expected)
    assert stats.keys() == {"policy_loss", "entropy", "kl", "clip_fraction"}


@pytest.mark.parametrize("name", ["action_logp", "advantages", "value_targets", "loss_mask"])
@pytest.mark.parametrize("model_config", [{}, {"use_lstm": True, "lstm_cell_size": 4}], ids=["flat", "lstm"])
def test_columns_are_not_spread_over_rows(name, model_config):
    module = make_module(**model_config)
    shape = (3, 4) if model_config else (12,)
    rows = make_rows(module, *shape)
    rows["loss_mask"] = torch.ones(shape, dtype=torch.bool)
    for column in (rows[name][..., None], rows[name][..., :1]):
        with pytest.raises(BatchError, match=f"row in '{name}', a tensor of shape .{shape[0]},.*got shape"):
            ppo_loss(module, {**rows, name: column})
    with pytest.raises(BatchError, match=r"needs a bool 'loss_mask', got torch\.float32"):
        ppo_loss(module, {**rows, "loss_mask": torch.ones(shape)})


NESTED = gym.spaces.Dict({"go": gym.spaces.Box(-1, 1, (1,), np.float32), "say": gym.spaces.Discrete(3)})
OTHER_ACTIONS = {  # space, other actions than of the space, what the error says
    "Box, flat": (gym.spaces.Box(-1, 1, (1,), np.float32), lambda actions: actions[:, 0],
                  r"\(12, 1\) in rows\['actions'\], got shape \(12,\)"),
    "Box, one for all": (gym.spaces.Box(-1, 1, (2,), np.float32), lambda actions: actions[:1], r"got shape \(1, 2\)"),
    "Discrete, deep": (gym.spaces.Discrete(4), lambda actions: actions[:, None], r"\(12,\) in.*got shape \(12, 1\)"),
    "MultiDiscrete, flat": (gym.spaces.MultiDiscrete([2, 3]), lambda actions: actions[:, 0], r"got shape \(12,\)"),
    "in a Dict": (NESTED, lambda actions: {**actions, "go": actions["go"][:, 0]}, r"\['go'\], got shape"),
    "missing in a Dict": (NESTED, lambda actions: {"go": actions["go"]}, r"rows\['actions'\]\['say'\], got NoneType"),
    "array": (gym.spaces.Discrete(4), lambda actions: actions.numpy(), "got ndarray"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_ACTIONS)
def test_actions_are_not_spread_over_rows(name):
    space, spoilt, message = OTHER_ACTIONS[name]
    module = make_module(space)
    rows = make_rows(module, 12)
    assert torch.isfinite(ppo_loss(module, rows))
    with pytest.raises(BatchError, match=message):
        ppo_loss(module, {**rows, "actions": spoilt(rows["actions"])})


def test_values_are_not_spread_over_rows():
    class Widened(fastmarl.RLModule):
        def _forward(self, batch, **kwargs):
            n = len(batch["obs"])
            return {"action_dist_inputs": torch.zeros(n, 4), "vf_preds": torch.zeros(n, 1)}

    module = Widened(observation_space=OBS_SPACE, action_space=gym.spaces.Discrete(4))
    with pytest.raises(ModuleOutputError, match=r"'vf_preds' of shape \(3,\), one for each row, got \(3, 1\)"):
        ppo_loss(module, make_rows(make_module(), 3))


def test_no_rows_have_no_loss():
    module, stats = make_module(), {}
    loss = ppo_loss(module, {name: column[:0] for name, column in make_rows(module, 3).items()}, stats=stats)
    loss.backward()
    assert loss == 0 and not any(parameter.grad.any() for parameter in module.parameters())
    assert stats.pop("vf_explained_var") == 1
    assert all(value == 0 for value in stats.values())


def test_masked_actions_are_not_learned():
    module = make_module()
    rows = make_rows(module, 6)
    rows["action_mask"] = torch.ones(6, 4, dtype=torch.bool)
    rows["action_mask"][:, 3] = False
    rows["actions"] = rows["actions"].clamp(max=2)
    loss = ppo_loss(module, rows)
    assert torch.isfinite(loss) and not torch.equal(
        loss, ppo_loss(module, {**rows, "action_mask": rows["action_mask"] | True})
    )


def test_errors_of_the_loss_name_missing_columns_and_methods():
    module = make_module()
    rows = make_rows(module, 3)
    del rows["advantages"], rows["obs"]
    with pytest.raises(BatchError, match=r"needs the columns \['obs', 'advantages'\]"):
        ppo_loss(module, rows)
    with pytest.raises(BatchError, match=r"needs the columns \['value_targets'\]"):
        ppo_loss(module, {name: column for name, column in make_rows(module, 3).items() if name != "value_targets"})

    class NoValues(fastmarl.RLModule):
        def _forward(self, batch, **kwargs):
            return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 4)}

    without = NoValues(observation_space=OBS_SPACE, action_space=gym.spaces.Discrete(4))
    for call in (
        lambda: ppo_loss(without, make_rows(module, 3)),
        lambda: make_value_fn(without)(np.zeros((2, 5), np.float32)),
    ):
        with pytest.raises(ModuleOutputError, match="'vf_preds'"):
            call()


# Values, and columns as tensors.


def test_values_of_observations():
    module = make_module()
    value_fn = make_value_fn(module)
    obs = np.random.default_rng(0).random((7, 5), np.float32)
    expected = module.forward_train({"obs": torch.from_numpy(obs)})["vf_preds"]
    values = value_fn(obs)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, expected.detach().numpy())
    norm = ValueNorm()
    norm.update(torch.tensor([10.0, 30.0]))
    np.testing.assert_allclose(make_value_fn(module, norm)(obs), values * 10 + 20, rtol=1e-5)
    with torch.no_grad():
        next(module.parameters()).mul_(2)
    assert not np.array_equal(value_fn(obs), values), "the weights it has then"
    with pytest.raises(ConfigError, match="recurrent"):
        make_value_fn(make_module(use_lstm=True))


@given(st.lists(st.lists(st.floats(-1e4, 1e4), min_size=0, max_size=20), max_size=5), st.sampled_from([0.9, 0.99999]))
def test_value_norm(batches, beta):
    norm = ValueNorm(beta)
    values = torch.tensor([0.0, -3.0, 100.0])
    assert torch.equal(norm.normalize(values), values) and torch.equal(norm.denormalize(values), values)
    mean = square = weight = 0.0
    for batch in batches:
        norm.update(torch.tensor(batch))
        if batch:
            kept, rows = beta ** len(batch), np.float32(batch).astype(np.float64)
            mean, square = kept * mean + (1 - kept) * rows.mean(), kept * square + (1 - kept) * (rows**2).mean()
            weight = kept * weight + 1 - kept
    if weight:
        std = max(square / weight - (mean / weight) ** 2, 1e-2) ** 0.5
        np.testing.assert_allclose(norm.normalize(values), (values.numpy() - mean / weight) / std, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(norm.denormalize(norm.normalize(values)), values, rtol=1e-3, atol=1e-2)
    again = ValueNorm(beta)
    again.load_state_dict(norm.state_dict())
    assert torch.equal(again.normalize(values), norm.normalize(values))


def test_targets_of_any_shape_count_one_by_one():
    flat, shaped = ValueNorm(0.9), ValueNorm(0.9)
    for targets in torch.arange(24.0).split(12):
        flat.update(targets)
        shaped.update(targets.reshape(3, 2, 2))
    assert shaped.state_dict() == flat.state_dict()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_targets_that_would_spoil_a_value_norm_are_refused(bad):
    norm = ValueNorm()
    norm.update(torch.tensor([1.0, 2.0]))
    before = deepcopy(norm.state_dict())
    with pytest.raises(BatchError, match="got 1 of 3 that are NaN or infinite"):
        norm.update(torch.tensor([1.0, bad, 2.0]))
    assert norm.state_dict() == before


@pytest.mark.parametrize("beta", [1.0, 2.0, -0.1, np.nan])
def test_averages_that_would_not_follow_are_refused(beta):
    with pytest.raises(ConfigError, match=r"beta must be in \[0, 1\)"):
        ValueNorm(beta)


def test_a_value_norm_may_be_part_of_a_module_in_float32():
    plain, single = ValueNorm(), torch.nn.Sequential(ValueNorm()).float()[0]
    for norm in (plain, single):
        norm.update(torch.tensor([1.0, 2.0, 7.0]))
    values = torch.tensor([0.0, 5.0])
    torch.testing.assert_close(single.normalize(values), plain.normalize(values), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mask", [None, [True, False, True, True]])
def test_normalized_advantages(mask):
    advantages = torch.tensor([1.0, 9.0, 2.0, -6.0])
    counted = advantages.numpy() if mask is None else advantages.numpy()[mask]
    got = normalized(advantages, None if mask is None else torch.tensor(mask))
    want = (advantages.numpy() - counted.mean()) / counted.std()
    np.testing.assert_allclose(got, want if mask is None else np.where(mask, want, 0.0), rtol=1e-6)
    assert abs(normalized(advantages, min_std=100.0)).max() < 0.1


def test_advantages_without_spread_become_zeros():
    """The sample's standard deviation of one number is NaN."""
    assert normalized(torch.tensor([3.0])).tolist() == [0.0]
    assert normalized(torch.tensor([3.0, 5.0]), torch.tensor([True, False])).tolist() == [0.0, 0.0]
    assert normalized(torch.tensor([3.0, 5.0]), torch.tensor([False, False])).tolist() == [0.0, 0.0]
    assert normalized(torch.empty(0)).tolist() == []


def test_columns_become_tensors():
    given = {"obs": {"a": np.zeros((2, 3)), "b": (np.ones(2, np.int64),)}, "eps_id": np.array(["x", "y"], object),
             "terminateds": np.array([True, False]), "infos": [{}, {}]}  # fmt: skip
    tensors = to_tensors(given)
    assert tensors.keys() == {"obs", "terminateds"}
    assert tensors["obs"]["a"].dtype == torch.float32 and tensors["obs"]["b"][0].dtype == torch.int64
    assert tensors["terminateds"].dtype == torch.bool
    for names in (["terminateds"], iter(["terminateds"])):
        assert to_tensors(given, names).keys() == {"terminateds"}
    shared = np.zeros(3, np.float32)
    to_tensors({"a": shared})["a"][0] = 1
    assert shared[0] == 1
    for names, text in ((["x"], r"columns \['x'\]"), (["infos"], "contains a list"), (["eps_id"], "array of object")):
        with pytest.raises(BatchError, match=text):
            to_tensors(given, names)


@pytest.mark.parametrize("dtype", ["f4", ">f4", "f8", ">i8", "?", "longdouble"])
def test_arrays_that_pytorch_does_not_take_are_copied(dtype):
    array = np.array([[1, 2, 0], [3, 4, 0]], dtype)
    read_only = array.copy()
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors = to_tensors({"given": array, "read only": read_only, "backwards": array[::-1, ::-1]})
    for name, tensor in tensors.items():
        tensor[:] = 0
        expected = array.dtype.newbyteorder("=") if array.dtype.kind in "ib" else np.float32
        assert tensor.numpy().dtype == expected, name
    assert read_only.any() and to_tensors({"a": array[::-1]})["a"].tolist() == array[::-1].tolist()


@pytest.mark.parametrize("model_config", [{}, {"use_lstm": True, "lstm_cell_size": 8}], ids=["flat", "lstm"])
def test_a_loop_of_these_learns(model_config):
    """It equals a plain loop, up to rounding, and its returns improve."""
    config = fastmarl.EnvRunnerConfig(
        env="fastmarl.cart_pole",
        env_config={"num_agents": 2},
        num_envs_per_env_runner=8,
        rollout_fragment_length=64,
        seed=1,
        model_config={"fcnet_hiddens": [32], **model_config},
    )
    torch.manual_seed(0)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        module = runner.module["default_policy"]
        optimizer = torch.optim.Adam([flat_parameters(module)], lr=3e-3, fused=True)
        returns = []
        for _ in range(40):
            episodes = runner.sample()
            returns.append(runner.get_metrics()["episode_return_mean"])
            if model_config:
                batch = sequences(episodes, max_seq_len=16)["default_policy"]
                names = ["obs", "actions", "action_logp", "state_in", "loss_mask"]
                batch |= {"advantages": batch["vf_preds"] * 0 + 1, "value_targets": batch["vf_preds"] * 0}
            else:
                batch = columns(episodes)["default_policy"]
                add_gae(batch, gamma=0.99, lambda_=0.95, value_fn=make_value_fn(module))
                names = ["obs", "actions", "action_logp"]
            tensors = to_tensors(batch, [*names, "advantages", "value_targets"])
            for rows in minibatches(tensors, 256, epochs=4):
                optimizer.zero_grad()
                ppo_loss(module, rows, vf_coeff=0.01).backward()
                optimizer.step()
    if not model_config:
        assert np.mean(returns[-5:]) > 3 * np.mean(returns[:5])


# Memory.

UPDATES = """
import resource
import numpy as np
from fastmarl.learning import keep_freed_memory

def faults():
    for update in range(60):
        if update == 10:
            begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        arrays = [np.ones(1 << 17) for _ in range(12)]  # 1 MiB each
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun

print(faults())
assert keep_freed_memory()
print(faults())
"""


def test_freed_memory_is_kept():
    """In a process of its own: it is for good. 50 updates need each of 3,072 pages again, or none of them."""
    environ = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}  # else what lies behind an array decides, too
    done = subprocess.run([sys.executable, "-c", UPDATES], check=True, capture_output=True, text=True, env=environ)
    before, after = map(int, done.stdout.split())
    assert before > 50 * 1000 and after < 50 * 10

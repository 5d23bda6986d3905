"""Modules that compute something else than the layers that a pass of them shows: autograd has to update them."""

import copy
import random
import re
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.ppo import BOX_ACTIONS, DISCRETE, make_batch, make_module
from support.random_cases import number_of_cases
from torch import nn

from fastmarl.learning import PPOLearner, compiled_gradient, ppo_loss
from fastmarl.learning.dense_nets import gradient_of
from fastmarl.modules import RLModule, as_rl_module

CASES = number_of_cases(12)


class Plain(RLModule):
    """Its forward pass is nothing but layers."""

    def setup(self):
        self.trunk, self.pi, self.vf = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def _forward(self, batch, **kwargs):
        features = torch.tanh(self.trunk(batch["obs"]))
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features)[:, 0]}


class Clamped(Plain):
    """In place, so that nothing reads the result; and only once logits have grown."""

    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch)
        outputs["action_dist_inputs"].clamp_(-20, 20)
        return outputs


class RectifiedInPlace(Plain):
    """By a module whose result isn't read."""

    def setup(self):
        super().setup()
        self.relu = nn.ReLU(inplace=True)

    def _forward(self, batch, **kwargs):
        features = self.trunk(batch["obs"])
        self.relu(features)
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features)[:, 0]}


class RectifiedCopy(RectifiedInPlace):
    """The value reads what the copy was made of."""

    def _forward(self, batch, **kwargs):
        features = self.trunk(batch["obs"])
        rectified = torch.relu(features.float())
        return {"action_dist_inputs": self.pi(rectified), "vf_preds": self.vf(features)[:, 0]}


class Detached(Plain):
    """A value that doesn't teach its trunk; its weights of 0 teach it nothing at first, either."""

    def setup(self):
        super().setup()
        self.vf_trunk = nn.Linear(6, 16)
        nn.init.zeros_(self.vf.weight)

    def _forward(self, batch, **kwargs):
        with torch.no_grad():
            features = torch.tanh(self.vf_trunk(batch["obs"]))
        return {**super()._forward(batch), "vf_preds": self.vf(features)[:, 0]}


class Autocast(Plain):
    def _forward(self, batch, **kwargs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features = torch.tanh(self.trunk(batch["obs"])).float()
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features)[:, 0]}


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient / 2


class OwnBackward(Detached):
    """With a function of which a trace shows nothing."""

    def _forward(self, batch, **kwargs):
        features = Halved.apply(torch.tanh(self.vf_trunk(batch["obs"])))
        return {**Plain._forward(self, batch), "vf_preds": self.vf(features)[:, 0]}


class Counting(Plain):
    """Its calls, in a buffer."""

    def setup(self):
        super().setup()
        self.register_buffer("n_calls", torch.zeros(()))

    def _forward(self, batch, **kwargs):
        self.n_calls += 1
        return super()._forward(batch)


class CountingInANewBuffer(Counting):
    def _forward(self, batch, **kwargs):
        self.n_calls = self.n_calls + 1
        return Plain._forward(self, batch)


class Listing(Plain):
    def setup(self):
        super().setup()
        self.calls = []

    def _forward(self, batch, **kwargs):
        self.calls.append(1)
        return super()._forward(batch)


class CountingTwice(Plain):
    """The second number may get the place of the first one in memory."""

    n_calls = 10**9

    def _forward(self, batch, **kwargs):
        self.n_calls += 1
        self.n_calls += 1
        return super()._forward(batch)


class SometimesSkipping(Plain):
    def setup(self):
        super().setup()
        self.more = nn.Linear(6, 6)

    def _forward(self, batch, **kwargs):
        is_skipped = self.draw() < 0.5
        return super()._forward({"obs": batch["obs"] if is_skipped else self.more(batch["obs"])})

    def draw(self):
        return random.random()


class SkippingByNumPy(SometimesSkipping):
    def draw(self):
        return np.random.random()  # noqa: NPY002


class SkippingByTorch(SometimesSkipping):
    def draw(self):
        return float(torch.rand(()))


class SaysItMasks(Plain):
    masks_actions = True


class LogitsAreValues(Plain):
    def _forward(self, batch, **kwargs):
        values = self.vf(torch.tanh(self.trunk(batch["obs"])))
        return {"action_dist_inputs": values, "vf_preds": values[:, 0]}


class Gaussian(Plain):
    def setup(self):
        super().setup()
        self.pi = nn.Linear(16, 2)
        self.log_std = nn.Parameter(torch.zeros(2))

    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch)
        means = outputs["action_dist_inputs"]
        return {**outputs, "action_dist_inputs": torch.cat(tensors=[means, self.log_std.expand_as(means)], dim=-1)}


class TiedScales(Gaussian):
    def setup(self):
        super().setup()
        self.log_std = self.pi.bias

    def _forward(self, batch, **kwargs):
        outputs = Plain._forward(self, batch)
        means = outputs["action_dist_inputs"]
        return {**outputs, "action_dist_inputs": torch.cat([means, self.log_std.expand_as(means)], -1)}


class ComputedWeight(Plain):
    """As a hypernetwork would set it."""

    def setup(self):
        super().setup()
        weight = self.pi.weight.detach()
        del self.pi.weight
        self.pi.weight = weight


class HookOnAParameter(Plain):
    def setup(self):
        super().setup()
        self.pi.weight.register_hook(lambda gradient: gradient.clamp(-1e6, 1e6))


class HookAfterAccumulation(Plain):
    def setup(self):
        super().setup()
        self.pi.weight.register_post_accumulate_grad_hook(lambda parameter: None)


FOOLING = {
    Clamped: "has aten.cl", RectifiedCopy: "not the only one to read",
    Detached: "no_grad", Autocast: "has aten._to_copy", OwnBackward: "autograd.Function",
    Counting: "has aten.add_", CountingInANewBuffer: "has aten.add", Listing: "changes attributes",
    CountingTwice: "changes attributes", SometimesSkipping: "random", SkippingByNumPy: "random",
    SkippingByTorch: "has aten.rand", SaysItMasks: "masks actions",
    ComputedWeight: "not a torch.nn.Parameter",
    LogitsAreValues: "values are its logits", TiedScales: "share a parameter",
    HookOnAParameter: "a parameter in it has hooks", HookAfterAccumulation: "a parameter in it has hooks",
}  # fmt: skip


def batch_of(module, seed):
    """As an older policy would have sampled it, without a call of the module."""
    is_box = module.action_space is BOX_ACTIONS
    batch = make_batch(make_module(actions=module.action_space), seed=seed)
    return batch if is_box or not isinstance(module, LogitsAreValues) else {**batch, "actions": batch["actions"] * 0}


@pytest.mark.parametrize("module_class", FOOLING)
def test_modules_that_do_more_than_layers(module_class):
    module = make_module(module_class, actions=BOX_ACTIONS if issubclass(module_class, Gaussian) else DISCRETE)
    learner = PPOLearner(module, epochs=2)
    for seed in range(2):
        learner.update(batch_of(module, seed))
        assert re.match(f"autograd: .*{FOOLING[module_class]}", learner.backend)


# Modules that are compiled all the same.


class ValueOfLogits(Plain):
    """The logits' derivatives come from the loss and from the value."""

    def setup(self):
        super().setup()
        self.vf = nn.Linear(4, 1)

    def _forward(self, batch, **kwargs):
        logits = self.pi(torch.tanh(self.trunk(batch["obs"])))
        return {"action_dist_inputs": logits, "vf_preds": self.vf(logits)[:, 0]}


class NoWidth(Plain):
    """Layers after the empty one give their biases alone."""

    def setup(self):
        super().setup()
        self.nothing, self.trunk = nn.Linear(6, 0), nn.Linear(0, 16)

    def _forward(self, batch, **kwargs):
        return super()._forward({"obs": self.nothing(batch["obs"])})


class OtherHead(Plain):
    """Which the loss does not need, and whose weights may be anything."""

    def setup(self):
        super().setup()
        self.other = nn.Linear(16, 200)
        nn.init.constant_(self.other.weight, torch.inf)

    def _forward(self, batch, **kwargs):
        features = torch.tanh(self.trunk(batch["obs"]))
        return {**super()._forward(batch), "other": self.other(features)}


class SeesActions(Plain):
    """If it is called with them, which the loss does not do."""

    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch)
        return {"action_dist_inputs": outputs["action_dist_inputs"]} if "actions" in batch else outputs


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("module_class", [Plain, ValueOfLogits, NoWidth, SeesActions, RectifiedInPlace, Gaussian])
def test_modules_that_are_compiled(module_class):
    module = make_module(module_class, actions=BOX_ACTIONS if issubclass(module_class, Gaussian) else DISCRETE)
    ours, theirs = (
        PPOLearner(copy.deepcopy(module), lr=0.02, compiled=compiled, generator=torch.Generator().manual_seed(1))
        for compiled in (True, False)
    )
    for seed in range(3):
        batch = batch_of(module, seed)
        ours.update(batch)
        theirs.update(batch)
        assert ours.backend == "compiled"
    torch.testing.assert_close(ours.parameters.detach(), theirs.parameters.detach(), rtol=1e-3, atol=1e-4)


LINEAR = {
    "layer": lambda layer, x: layer(x),
    "function": lambda layer, x: nn.functional.linear(x, layer.weight, layer.bias),
    "product": lambda layer, x: (
        x @ layer.weight.T if layer.bias is None else torch.addmm(layer.bias, x, layer.weight.T)
    ),
}
ACTIVATION = {
    "tanh": torch.tanh, "method": lambda x: x.tanh(), "relu": nn.ReLU(), "in place": nn.ReLU(inplace=True),
    "relu_": lambda x: x.relu_(), "silu": nn.functional.silu, "gelu": nn.GELU(), "elu": nn.ELU(0.5),
    "elu in place": lambda x: nn.functional.elu(x, inplace=True), "none": lambda x: x,
}  # fmt: skip
SQUEEZE = {
    "index": lambda x: x[..., 0], "column": lambda x: x[:, 0], "squeeze": lambda x: x.squeeze(-1),
    "all": lambda x: x.squeeze(), "flatten": lambda x: x.flatten(), "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(-1),
}  # fmt: skip
SPACES = (DISCRETE, gym.spaces.MultiDiscrete([3, 1, 4]), BOX_ACTIONS)


class RandomModule(nn.Module):
    """A net whose parts, and how they are called, are drawn."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.random = random.Random(seed)
        self.actions, self.key = self.draw(SPACES), self.draw([None, "x"])
        self.n_obs, self.is_free = self.draw([1, 6, 19]), self.draw([True, False])
        self.values = self.draw(["shared", "own", "logits", "none"])
        n_out = {4: 4, 3: 8, 2: 2 if self.is_free else 4}[
            int(getattr(self.actions, "n", 3 if self.actions.shape == (3,) else 2))
        ]
        self.log_std = nn.Parameter(torch.randn(2) / 3) if self.actions is BOX_ACTIONS and self.is_free else None
        self.trunk, width = self.layers(self.n_obs, self.draw([0, 1, 2]))
        self.pi = nn.Linear(width, n_out)
        self.vf_trunk, vf_width = self.layers(self.n_obs, self.draw([0, 1]))
        self.vf = nn.Linear({"shared": width, "logits": n_out}.get(self.values, vf_width), 1)
        self.calls = [self.draw([*LINEAR]) for _ in range(8)], [self.draw([*ACTIVATION]) for _ in range(8)]
        self.squeeze = self.draw([*SQUEEZE])
        del self.random

    def draw(self, options):
        return self.random.choice(options)

    def layers(self, width, n):
        widths = [width, *(self.draw([1, 5, 16, 33]) for _ in range(n))]
        return nn.ModuleList(
            nn.Linear(*pair, bias=self.draw([True, True, False])) for pair in pairwise(widths)
        ), widths[-1]

    def features(self, x, layers):
        for layer, linear, activation in zip(layers, *self.calls, strict=False):
            x = ACTIVATION[activation](LINEAR[linear](layer, x))
        return x

    def forward(self, batch):
        obs = batch["obs"] if self.key is None else batch["obs"][self.key]
        features = self.features(obs, self.trunk)
        logits = LINEAR[self.calls[0][-1]](self.pi, features)
        outputs = {"action_dist_inputs": logits}
        if self.values != "none":
            seen = {"shared": features, "logits": logits}.get(self.values)
            seen = self.features(obs, self.vf_trunk) if seen is None else seen
            outputs["vf_preds"] = SQUEEZE[self.squeeze](self.vf(seen))
        if self.log_std is not None:
            outputs["action_dist_inputs"] = torch.cat([logits, self.log_std.expand_as(logits)], -1)
        return outputs


def random_batch(net, module, seed):
    generator, n = torch.Generator().manual_seed(seed), 90
    x = torch.randn(n, net.n_obs, generator=generator)
    batch = {"obs": x if net.key is None else {"x": x, "other": torch.randn(n, 2, generator=generator)}}
    with torch.no_grad():
        outputs = module.forward_train(batch)
        distribution = module.get_train_action_dist_cls().from_logits(outputs["action_dist_inputs"])
        actions = distribution.sample()
        batch |= {"actions": actions, "action_logp": distribution.logp(actions)}
    batch["action_logp"] += torch.randn(n, generator=generator) / 5
    batch["advantages"], targets = torch.randn(2, n, generator=generator)
    batch |= {"value_targets": targets} if net.values != "none" else {}
    if seed % 3 == 0:
        batch["loss_mask"] = torch.rand(n, generator=generator) < 0.7
    return batch


def in_doubles(column):
    if isinstance(column, dict):
        return {key: in_doubles(each) for key, each in column.items()}
    return column.double() if column.is_floating_point() else column


@pytest.mark.parametrize("seed", range(CASES))
def test_gradients_of_random_modules(seed):
    net = RandomModule(seed)
    obs = gym.spaces.Box(-9, 9, (net.n_obs,))
    spaces = obs if net.key is None else gym.spaces.Dict({"x": obs, "other": gym.spaces.Box(-9, 9, (2,))}), net.actions
    module = as_rl_module(net, *spaces)
    batch = random_batch(net, module, seed)
    options = {"vf_coeff": 0.5 if net.values != "none" else 0.0, "entropy_coeff": 0.02, "clip": 0.1}
    exact = copy.deepcopy(net).double()
    learner = PPOLearner(module, lr=0.0, epochs=1, num_minibatches=1, max_grad_norm=None, **options)
    learner.update(batch)
    assert learner.backend == "compiled"
    ppo_loss(
        as_rl_module(exact, *spaces), {name: in_doubles(column) for name, column in batch.items()}, **options
    ).backward()
    for (name, ours), theirs in zip(net.named_parameters(), exact.parameters(), strict=True):
        want = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        scale = float(want.abs().max()) + 1e-3
        torch.testing.assert_close(
            ours.grad.double(), want, rtol=0, atol=1e-4 * scale, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_layers_that_the_loss_does_not_need_are_left_out():
    module = make_module(OtherHead)
    learner = PPOLearner(module)
    learner.update(batch_of(module, 0))
    assert learner.backend == "compiled"
    assert not module.other.weight.grad.any()


def test_gradients_are_compared_parameter_by_parameter(monkeypatch):
    """A small one that is wrong does not hide behind a large one."""

    def without_values(net, gradients, **options):
        return gradient_of(net, {each: found for each, found in gradients.items() if len(each) != 1}, **options)

    monkeypatch.setattr(compiled_gradient, "gradient_of", without_values)
    module = make_module(Plain)
    batch = batch_of(module, 0)
    batch["advantages"] *= 1e5
    learner = PPOLearner(module)
    learner.update(batch)
    assert re.match(r"autograd: the compiled gradient of a parameter of shape \(1,", learner.backend)

"""Which modules PPOLearner updates by compiled code, and which do something else than the layers that a pass of them
shows: autograd has to update these."""

import copy
import random
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from queue import SimpleQueue

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.ppo import BOX_ACTIONS, DISCRETE, make_batch, make_module
from support.random_cases import number_of_cases
from torch import nn

from fastmarl.learning import PPOLearner, compiled_batch, ppo_loss
from fastmarl.learning.dense_nets import gradient_of
from fastmarl.modules import DefaultRLModule, RLModule, as_rl_module

CASES = number_of_cases(12)


class Plain(RLModule):
    """Its forward pass is nothing but layers."""

    def setup(self):
        self.trunk, self.pi, self.vf = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(16, 1)

    def _forward(self, batch, **kwargs):
        features = torch.tanh(self.trunk(batch["obs"]))
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features)[:, 0]}


class RectifiedInPlace(Plain):
    """By a module whose result isn't read."""

    def setup(self):
        super().setup()
        self.relu = nn.ReLU(inplace=True)

    def _forward(self, batch, **kwargs):
        features = self.trunk(batch["obs"])
        self.relu(features)
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features)[:, 0]}


class Gaussian(Plain):
    def setup(self):
        super().setup()
        self.pi = nn.Linear(16, 2)
        self.log_std = nn.Parameter(torch.zeros(2))

    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch)
        means = outputs["action_dist_inputs"]
        return {**outputs, "action_dist_inputs": torch.cat(tensors=[means, self.log_std.expand_as(means)], dim=-1)}


# Modules that are left to autograd.


class RectifiedCopy(Plain):
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


class OwnTraining(Plain):
    def forward_train(self, batch, **kwargs):
        outputs = super().forward_train(batch)
        return {**outputs, "action_dist_inputs": outputs["action_dist_inputs"] / 2}


class Clamped(DefaultRLModule):
    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch)
        return {**outputs, "action_dist_inputs": outputs["action_dist_inputs"].clamp(-1, 1)}


class LogitsAreValues(Plain):
    def _forward(self, batch, **kwargs):
        values = self.vf(torch.tanh(self.trunk(batch["obs"])))
        return {"action_dist_inputs": values, "vf_preds": values[:, 0]}


class SaysItMasks(Plain):
    masks_actions = True


def altered(alter, module_class=Plain, **options):
    """Return a function that makes a module and alters it."""

    def make():
        module = make_module(module_class, **options)
        alter(module)
        return module

    return make


def with_layers(*layers):
    """Return a function that makes a module with further layers behind its trunk."""
    return altered(lambda module: setattr(module, "trunk", nn.Sequential(module.trunk, *layers)))


def of_logits(change):
    """Return a function that makes a module that changes its logits."""

    class Changing(Plain):
        def _forward(self, batch, **kwargs):
            outputs = super()._forward(batch)
            return {**outputs, "action_dist_inputs": change(outputs["action_dist_inputs"])}

    return partial(make_module, Changing)


def of_observations(change, alter=lambda module: None):
    """Return a function that makes a module that calls `change(module, obs)` in each pass."""

    class Changing(Plain):
        def _forward(self, batch, **kwargs):
            return super()._forward({"obs": change(self, batch["obs"])})

    return altered(alter, Changing)


def skipping(draw):
    """Return a function that makes a module with a layer that it leaves out at random."""
    return of_observations(
        lambda module, obs: obs if draw() < 0.5 else module.more(obs),
        lambda module: setattr(module, "more", nn.Linear(6, 6)),
    )


def counting(module, obs):
    module.n_calls += 1
    return obs


def counting_twice(module, obs):
    """The second number may get the place of the first one in memory."""
    return counting(module, counting(module, obs))


def counting_noise(module, obs):
    return counting(module, obs + torch.randn(6))


def counting_in_a_new_buffer(module, obs):
    module.n_calls = module.n_calls + 1
    return obs


def listing(module, obs):
    module.calls.append(1)
    return obs


def with_buffer(module):
    module.register_buffer("n_calls", torch.zeros(()))


def computing_a_weight(module):
    """As a hypernetwork would set it."""
    weight = module.pi.weight.detach()
    del module.pi.weight
    module.pi.weight = weight


SQUARE = nn.Linear(16, 16)
BY_AUTOGRAD = {
    "convolutions": (partial(make_module, obs=gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)), "parameters|kernel"),
    "MultiBinary": (partial(make_module, actions=gym.spaces.MultiBinary(3)), "Bernoulli"),
    "doubles": (altered(nn.Module.double), "float64"),
    "large": (partial(make_module, fcnet_hiddens=[900, 900]), "torch is faster"),
    "TorchScript": (altered(lambda module: setattr(module, "pi", torch.jit.script(module.pi))),
                    "a RecursiveScriptModule in it"),
    "a hook": (altered(lambda module: module.pi.register_forward_hook(lambda *arguments: None), None), "hooks"),
    "a hook on a parameter": (altered(lambda module: module.pi.weight.register_hook(lambda gradient: gradient / 1)),
                              "a parameter in it has hooks"),
    "a hook after accumulation": (
        altered(lambda module: module.pi.weight.register_post_accumulate_grad_hook(lambda parameter: None)),
        "a parameter in it has hooks"),
    "no action space": (altered(lambda module: setattr(module, "action_space", None), None), "action space is unknown"),
    "a method on the instance": (
        altered(lambda module: setattr(module, "_forward", partial(DefaultRLModule._forward, module)), None),
        "its own _forward"),
    "own forward_train": (partial(make_module, OwnTraining), "forward_train"),
    "own _forward": (partial(make_module, Clamped), "has aten.clamp"),
    "says it masks": (partial(make_module, SaysItMasks), "masks actions"),
    "noise": (of_logits(lambda logits: logits + torch.randn(4)), "has aten.randn"),
    "large logits clamped in place": (of_logits(lambda logits: logits.clamp_(-20, 20)), "has aten.cl"),
    "branches": (of_observations(lambda module, obs: obs if obs.sum() > 0 else -obs), "has aten.sum"),
    "branches by NumPy": (of_observations(lambda module, obs: obs if obs.numpy().max() < 99 else -obs),
                          r"calls Tensor.numpy\(\)"),
    "branches by a list": (of_observations(lambda module, obs: obs if max(obs.tolist())[0] < 99 else -obs),
                           r"calls Tensor.tolist\(\)"),
    "other inputs": (of_observations(lambda module, obs: obs * 2), "has"),
    "dropout": (with_layers(nn.Dropout(0.1)), "has aten."),
    "layer norm": (with_layers(nn.LayerNorm(16)), "has aten.native_layer_norm"),
    "a layer used twice": (with_layers(nn.Tanh(), SQUARE, nn.Tanh(), SQUARE), "share a parameter"),
    "tied scales": (altered(lambda module: setattr(module, "log_std", module.pi.bias), Gaussian, actions=BOX_ACTIONS),
                    "share a parameter"),
    "a computed weight": (altered(computing_a_weight), "not a float32 torch.nn.Parameter"),
    "values are logits": (partial(make_module, LogitsAreValues), "values are its logits"),
    "before and after an activation": (partial(make_module, RectifiedCopy), "not the only one to read"),
    "no_grad": (partial(make_module, Detached), "no_grad"),
    "autocast": (partial(make_module, Autocast), "has aten._to_copy"),
    "own backward": (partial(make_module, OwnBackward), "autograd.Function"),
    "a count in a buffer": (of_observations(counting, with_buffer), "has aten.add_"),
    "a count in new buffers": (of_observations(counting_in_a_new_buffer, with_buffer), "has aten.add"),
    "a list": (of_observations(listing, lambda module: setattr(module, "calls", [])), "changes attributes"),
    "a count": (of_observations(counting_twice, lambda module: setattr(module, "n_calls", 10**9)),
                "changes attributes"),
    "random skips": (skipping(lambda: random.random()), "random"),
    "random skips by NumPy": (skipping(lambda: np.random.random()), "random"),  # noqa: NPY002
    "random skips by torch": (skipping(lambda: float(torch.rand(()))), "has aten.rand"),
    "a count of noise": (of_observations(counting_noise, lambda module: setattr(module, "n_calls", 0)),
                         "has aten.randn"),
}  # fmt: skip
AT_RANDOM = {
    "noise", "dropout", "random skips", "random skips by NumPy", "random skips by torch", "a count of noise",
}  # fmt: skip


def in_doubles(column):
    if isinstance(column, dict):
        return {key: in_doubles(each) for key, each in column.items()}
    return column.double() if column.is_floating_point() else column


def batch_of(module, seed):
    """As an older policy would have sampled it, without a call of the module."""
    batch = make_batch(make_module(obs=module.observation_space, actions=module.action_space or DISCRETE), seed=seed)
    if isinstance(module, LogitsAreValues):
        batch["actions"] *= 0
    return in_doubles(batch) if next(module.parameters()).dtype == torch.float64 else batch


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # of a category that depends on Python's version
@pytest.mark.parametrize("name", BY_AUTOGRAD)
def test_modules_that_do_more_than_layers(name):
    make, reason = BY_AUTOGRAD[name]
    learner, want = PPOLearner(make(), epochs=1, num_minibatches=1), {}
    batch = batch_of(learner.module, 0)
    ppo_loss(learner.module, batch, stats=want)
    found = learner.update(batch)
    if name not in AT_RANDOM:
        want = {key: float(value) for key, value in want.items()}
        # 2e-7: "vf_explained_var" is 1 minus a ratio near 1, whose last digit in float32 is 1.2e-7.
        assert {key: found[key] for key in want} == pytest.approx(want, rel=1e-4, abs=2e-7)
    assert re.match(f"autograd: .*({reason})", learner.backend), learner.backend
    learner.epochs, learner.num_minibatches = 2, 4
    for seed in range(2):
        learner.update(batch_of(learner.module, seed))
        assert re.match(f"autograd: .*({reason})", learner.backend), learner.backend


@pytest.mark.parametrize("name", sorted(AT_RANDOM))
def test_reading_a_module_consumes_no_random_numbers(name, monkeypatch):
    monkeypatch.setattr("threading.active_count", lambda: 1)  # other tests may have left threads
    make, _ = BY_AUTOGRAD[name]
    module, following = make(), []
    batch = batch_of(module, 0)
    for compiled in (True, False):
        learner = PPOLearner(copy.deepcopy(module), epochs=1, num_minibatches=1, compiled=compiled)
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        learner.update(batch)
        following.append((float(torch.rand(())), random.random(), np.random.random()))  # noqa: NPY002
    assert following[0] == following[1]


def test_numbers_that_other_threads_draw_meanwhile_are_not_drawn_again():
    drawn, pool = SimpleQueue(), ThreadPoolExecutor(1)

    def draw_elsewhere(module, obs):
        for draw in (lambda: float(torch.rand(())), random.random, np.random.random):
            drawn.put(pool.submit(draw).result())
        return obs

    with pool:
        module = of_observations(draw_elsewhere)()
        learner = PPOLearner(module, epochs=1, num_minibatches=1, generator=torch.Generator())
        for seed in range(3):
            learner.update(batch_of(module, seed))
    numbers = [drawn.get() for _ in range(drawn.qsize())]
    assert len(set(numbers)) == len(numbers) > 9


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
    ppo_loss(as_rl_module(exact, *spaces), in_doubles(batch), **options).backward()
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

    monkeypatch.setattr(compiled_batch, "gradient_of", without_values)
    module = make_module(Plain)
    batch = batch_of(module, 0)
    batch["advantages"] *= 1e5
    learner = PPOLearner(module)
    learner.update(batch)
    assert re.match(r"autograd: the compiled gradient of a parameter of shape \(1,", learner.backend)

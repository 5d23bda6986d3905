"""Modules whose derivative, side effects or code change between updates: PPOLearner learns as by autograd."""

import copy
import enum
import threading
import types
from collections import deque
from contextlib import nullcontext
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fastmarl.learning import PPOLearner
from fastmarl.modules import as_rl_module

N_ROWS = 64
OBS, ACTIONS = gym.spaces.Box(-9, 9, (6,)), gym.spaces.Discrete(4)
settings = types.ModuleType("settings_of_a_project")  # a file of the user's


class Net(nn.Module):
    """A shared trunk with two heads. `seen()` is what the value head gets."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.pi, self.vf = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(16, 1)
        self.activation = torch.tanh

    def forward(self, batch):
        x = self.activation(self.trunk(batch["obs"]))
        return {"action_dist_inputs": self.pi(x), "vf_preds": self.vf(self.seen(x))[..., 0]}

    def seen(self, x):
        return x


class Detaching(Net):
    """Detaches the value head if `is_on()`, which its kind defines."""

    def seen(self, x):
        return x.detach() if self.is_on() else x


class Reversal(torch.autograd.Function):
    forward = staticmethod(lambda context, x: x.view_as(x))
    backward = staticmethod(lambda context, gradient: -gradient)


class Reverse(nn.Module):
    def forward(self, x):
        return Reversal.apply(x)


def detaching(is_on, switch, **attributes):
    """Return a function that makes a module and a function that switches it."""

    def make():
        net = type("Own", (Detaching,), {"is_on": is_on, "__module__": __name__})()
        for name, value in attributes.items():
            setattr(net, name, copy.deepcopy(value))
        return net, partial(switch, net)

    return make


class Mode(enum.Enum):
    JOINT, APART = range(2)


class Slotted:
    __slots__ = ("is_on",)

    def __init__(self):
        self.is_on = False


IS_ON = False


def by_global():
    def switch(net):
        global IS_ON
        IS_ON = True

    global IS_ON
    IS_ON = False
    return detaching(lambda self: IS_ON, switch)()


def by_nonlocal():
    is_on = False

    def switch(net):
        nonlocal is_on
        is_on = True

    return detaching(lambda self: is_on, switch)()


def by_file():
    settings.is_on = False
    return detaching(lambda self: settings.is_on, lambda net: setattr(settings, "is_on", True))()


def helper(is_on=False):
    return is_on


def by_default():
    helper.__defaults__ = (False,)
    return detaching(lambda self: helper(), lambda net: setattr(helper, "__defaults__", (True,)))()


def by_keyword():
    held = {"is_on": False}

    def own(*, held=held):
        return held["is_on"]

    return detaching(lambda self: own(), lambda net: held.update(is_on=True))()


def by_code():
    def own():
        return False

    return detaching(lambda self: own(), lambda net: setattr(own, "__code__", (lambda: True).__code__))()


def by_class_attribute():
    net = type("Own", (Detaching,), {"on": False, "is_on": lambda self: self.on, "__module__": __name__})()
    return net, lambda: setattr(type(net), "on", True)


def changed(change, base=Net):
    def make():
        net = type("Own", (base,), {"__module__": __name__})()
        return net, partial(change, net)

    return make


def replaced_method(net):
    type(net).seen = lambda self, x: x.detach()


def replaced_class(net):
    net.__class__ = type("Other", (Net,), {"seen": lambda self, x: x.detach()})


def hook_on_a_tensor(net):
    def seen(self, x):
        x.register_hook(lambda gradient: gradient / 2)
        return x

    type(net).seen = seen


def with_adapter(net):
    """An adapter as in LoRA, whose second layer is 0 at first."""
    down, up = net.down, net.up
    type(net).seen = lambda self, x: x + up(down(x))


class Adapted(Net):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(16, 3, bias=False), nn.Linear(3, 16, bias=False)
        nn.init.zeros_(self.up.weight)


class Rows(Net):
    """Detaches the value head for few rows."""

    def seen(self, x):
        return x.detach() if len(x) < 12 else x


DERIVATIVES = {
    "an attribute": detaching(lambda self: self.on, lambda net: setattr(net, "on", True), on=False),
    "an entry": detaching(lambda self: self.options["on"], lambda net: net.options.update(on=True), options={"on": 0}),
    "an item": detaching(lambda self: self.flags[0], lambda net: net.flags.__setitem__(0, True), flags=[False]),
    "a set": detaching(lambda self: "on" in self.flags, lambda net: net.flags.add("on"), flags=set()),
    "an object": detaching(lambda self: self.options.on, lambda net: setattr(net.options, "on", True),
                           options=types.SimpleNamespace(on=False)),
    "a slot": detaching(lambda self: self.options.is_on, lambda net: setattr(net.options, "is_on", True),
                        options=Slotted()),
    "an enum": detaching(lambda self: self.mode is Mode.APART, lambda net: setattr(net, "mode", Mode.APART),
                         mode=Mode.JOINT),
    "an array": detaching(lambda self: self.on[0], lambda net: net.on.fill(True), on=np.zeros(1, bool)),
    "a buffer": detaching(lambda self: self.on[0] > 0, lambda net: net.on.fill_(1), on=torch.zeros(1)),
    "train()": detaching(lambda self: not self.training, lambda net: net.eval()),
    "a layer's train()": detaching(lambda self: not self.pi.training, lambda net: net.pi.eval()),
    "a method on the instance": detaching(lambda self: self.ask(), lambda net: setattr(net, "ask", lambda: True),
                                          ask=lambda: False),
    "a partial": detaching(lambda self: self.ask(), lambda net: setattr(net, "ask", partial(bool, 1)),
                           ask=partial(bool, 0)),
    "a global variable": by_global,
    "a nonlocal variable": by_nonlocal,
    "a variable of another file": by_file,
    "a default": by_default,
    "an object that is a keyword's default": by_keyword,
    "a function's code": by_code,
    "a class attribute": by_class_attribute,
    "a method of the class": changed(replaced_method),
    "the class": changed(replaced_class),
    "a method on the module": changed(lambda net: setattr(net, "seen", lambda x: x.detach())),
    "forward() on the module": changed(lambda net: setattr(net, "forward", lambda batch: type(net).forward(net, {
        "obs": batch["obs"] * 2}))),
    "an activation": changed(lambda net: setattr(net, "activation", torch.relu)),
    "another layer": changed(lambda net: setattr(net, "vf", nn.Sequential(Reverse(), net.vf))),
    "an adapter": changed(with_adapter, Adapted),
    "a hook": changed(lambda net: net.vf.register_forward_pre_hook(lambda layer, given: (given[0].detach(),))),
    "a backward hook": changed(lambda net: net.vf.register_full_backward_hook(lambda *given: (given[1][0] * 2,))),
    "a hook on a tensor": changed(hook_on_a_tensor),
    "a hook on a parameter": changed(lambda net: net.pi.weight.register_hook(lambda gradient: gradient / 3)),
    "no_grad": changed(lambda net: setattr(type(net), "seen", torch.no_grad()(lambda self, x: x * 1.0))),
    "data": changed(lambda net: setattr(type(net), "seen", lambda self, x: x.data)),
    "numbers of rows": changed(lambda net: None, Rows),
    "weights": detaching(lambda self: self.pi.weight[0, 0] > 0.5, lambda net: nn.init.ones_(net.pi.weight)),
}  # fmt: skip


def batch_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(N_ROWS, 6, generator=generator),
        "actions": torch.randint(0, 4, (N_ROWS,), generator=generator),
        "action_logp": -torch.rand(N_ROWS, generator=generator) - 1,
        "advantages": torch.randn(N_ROWS, generator=generator),
        "value_targets": torch.randn(N_ROWS, generator=generator),
    }


def learner_of(net, compiled, **options):
    module = as_rl_module(net, OBS, ACTIONS)
    generator = torch.Generator().manual_seed(1)
    return PPOLearner(module, lr=1e-2, epochs=2, compiled=compiled, generator=generator, **options)


def trained(make, compiled):
    """Return the change of the weights after the module has changed, by name, and the learner."""
    net, change = make()
    learner = learner_of(net, compiled)
    learner.update(batch_of(0))
    change()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    for seed in range(1, 4):
        learner.update(batch_of(seed))
    return {name.replace("vf.1", "vf"): value - before[name] for name, value in net.state_dict().items()}, learner


@pytest.mark.parametrize("what", DERIVATIVES)
def test_other_derivatives(what):
    (ours, learner), (theirs, _) = (trained(DERIVATIVES[what], compiled) for compiled in (True, False))
    for name, moved in theirs.items():
        torch.testing.assert_close(ours[name], moved, rtol=0, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}")
    assert what == "an activation" or learner.backend.startswith("autograd")


class Halving(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result / 2 if func is torch.tanh else result


def hook_on_all():
    return nn.modules.module.register_module_forward_hook(
        lambda layer, given, result: result * 2 if isinstance(layer, nn.Linear) else None
    )


@pytest.mark.parametrize("surroundings", [Halving, hook_on_all])
def test_modes_and_hooks_of_all_modules(surroundings):
    found = []
    for compiled in (True, False):
        learner = learner_of(Net(), compiled)
        learner.update(batch_of(0))
        with nullcontext() if surroundings is hook_on_all else surroundings():
            handle = hook_on_all() if surroundings is hook_on_all else None
            learner.update(batch_of(1))
            if handle is not None:
                handle.remove()
        found.append(learner)
    assert found[0].backend.startswith("autograd: there are hooks on all modules, or a mode")
    torch.testing.assert_close(found[0].parameters.detach(), found[1].parameters.detach(), rtol=0, atol=1e-3)
    found[0].update(batch_of(2))
    assert found[0].backend == "compiled"


# Side effects.


class Log:
    def __init__(self):
        self.n_passes = 0


ALL_PASSES = []


def effect(note, read, begins=False, **attributes):
    """Return a function that makes a module whose passes call `note(net)`, and a function that reads what was noted.

    Args:
        note: Function of the module.
        read: Function of the module.
        begins: True if passes note something only after a first update.
        attributes: Attributes of the module.
    """

    def make():
        net = type("Own", (Net,), {"seen": seen, "__module__": __name__})()
        net.is_recorded = not begins
        for name, value in attributes.items():
            setattr(net, name, copy.deepcopy(value))
        return net, partial(read, net)

    def seen(self, x):
        if self.is_recorded:
            note(self, x)
        return x

    return make


def by_closure():
    passes = []
    return effect(lambda net, x: passes.append(len(x)), lambda net: [*passes])()


def by_list_of_the_file():
    ALL_PASSES.clear()
    return effect(lambda net, x: ALL_PASSES.append(len(x)), lambda net: [*ALL_PASSES])()


def by_nonlocal_number():
    n_passes = 0

    def note(net, x):
        nonlocal n_passes
        n_passes += 1

    return effect(note, lambda net: n_passes)()


def by_object():
    log = Log()
    return effect(lambda net, x: setattr(log, "n_passes", log.n_passes + 1), lambda net: log.n_passes)()


def by_class():
    net, _ = effect(lambda net, x: setattr(type(net), "n", type(net).n + 1), lambda net: type(net).n)()
    type(net).n = 0
    return net, lambda: type(net).n


def running_mean(net, x):
    net.mean = 0.9 * net.mean + 0.1 * x.detach().mean(0)


def cache(net, x):
    if net.cached is None:
        net.cached = torch.ones_like(x[:1])


EFFECTS = {
    "a list": (lambda net, x: net.kept.append(len(x)), lambda net: net.kept, {"kept": []}),
    "tensors in a list": (lambda net, x: net.kept.append(x.detach().mean()), lambda net: len(net.kept), {"kept": []}),
    "a deque": (lambda net, x: net.kept.append(len(x)), lambda net: net.kept, {"kept": deque(maxlen=3)}),
    "a dict": (lambda net, x: net.kept.update({len(net.kept): len(x)}), lambda net: net.kept, {"kept": {}}),
    "a set": (lambda net, x: net.kept.add(len(net.kept)), lambda net: net.kept, {"kept": set()}),
    "a number": (lambda net, x: setattr(net, "n", net.n + 1), lambda net: net.n, {"n": 0}),
    "a number of an object": (lambda net, x: setattr(net.log, "n_passes", net.log.n_passes + 1),
                              lambda net: net.log.n_passes, {"log": Log()}),
    "a number of an encoder": (lambda net, x: setattr(net.trunk, "n", getattr(net.trunk, "n", 0) + 1),
                               lambda net: net.trunk.n, {}),
    "an array": (lambda net, x: net.n.__iadd__(1), lambda net: net.n[0], {"n": np.zeros(1)}),
    "a tensor": (lambda net, x: net.n.add_(1), lambda net: net.n[0], {"n": torch.zeros(1)}),
    "a new tensor": (running_mean, lambda net: net.mean.round(decimals=4).tolist(), {"mean": torch.zeros(16)}),
    "a cache": (cache, lambda net: net.cached.shape, {"cached": None}),
    "a counter": (lambda net, x: next(net.numbers), lambda net: next(net.numbers), {"numbers": iter(range(1000))}),
}  # fmt: skip
OF_OTHERS = {
    "a list of a closure": by_closure, "a list of the file": by_list_of_the_file,
    "a nonlocal number": by_nonlocal_number, "another object": by_object, "the class": by_class,
}  # fmt: skip


def effects_of(make, compiled):
    net, read = make()
    learner = learner_of(net, compiled)
    learner.update(batch_of(0))
    net.is_recorded = True
    for seed in range(1, 4):
        learner.update(batch_of(seed))
    return read(), learner.parameters.detach(), net


def assert_same_effects(make):
    """Each pass counts once, none is left out, and nothing foreign is left behind."""
    ours, theirs = (effects_of(make, compiled) for compiled in (True, False))
    assert ours[0] == theirs[0]
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=1e-3)
    ours[2]({"obs": torch.zeros(2, 6)})
    copy.deepcopy(ours[2].state_dict())


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("what", EFFECTS)
def test_side_effects(what, begins):
    note, read, attributes = EFFECTS[what]
    assert_same_effects(effect(note, read, begins, **attributes))


@pytest.mark.parametrize("what", OF_OTHERS)
def test_side_effects_outside_of_the_module(what):
    assert_same_effects(OF_OTHERS[what])


# Threads.


def test_other_threads():
    """A learner that reads modules again and again disturbs no pass of another thread, and is disturbed by none."""
    failures, stop, first = [], threading.Event(), Net()

    def repeat(call):
        try:
            while not stop.is_set():
                call()
        except Exception as error:
            failures.append(error)

    def read_again():
        learner = learner_of(copy.deepcopy(first), True)
        learner.update(batch_of(0))
        assert learner.backend == "compiled"

    norm, other = nn.LayerNorm(6), Net()
    calls = [lambda: norm(torch.zeros(3, 6)), lambda: other({"obs": torch.zeros(3, 6)}), read_again]
    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for _ in range(20):
        read_again()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures

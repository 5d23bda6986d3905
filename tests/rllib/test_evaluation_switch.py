"""Modules that torch runs are put into evaluation mode and back as RLlib's methods do it."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import nn

from fastmarl.rllib.inference.evaluation_switch import switch_of
from fastmarl.rllib.inference.inference import ExactInference

N_OBS = 3


class FrozenNorm(nn.BatchNorm1d):
    """Stays in evaluation mode whatever is said, as people freeze their normalisations."""

    def train(self, mode: bool = True) -> "FrozenNorm":
        return super().train(False)


class Counted(nn.Linear):
    """Counts how often its mode is set."""

    n_switches = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "training":
            Counted.n_switches += 1


class Noting(TorchRLModule):
    """Notes in which modes its parts are during each forward pass."""

    def setup(self) -> None:
        self.seen: list[list[bool]] = []
        self.fails = self.grows = False
        self.body = nn.Sequential(nn.Linear(N_OBS, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))

    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        self.seen.append([part.training for part in self.modules()])
        if self.fails:
            raise ValueError("this module fails")
        if self.grows:
            self.body.append(nn.Dropout(0.5))
        return {Columns.ACTION_DIST_INPUTS: self.body(batch[Columns.OBS])}


def build(module_class: type = Noting) -> MultiRLModule:
    spec = RLModuleSpec(module_class, Box(-1, 1, (N_OBS,), np.float32), Discrete(2))
    return MultiRLModuleSpec(rl_module_specs={"p0": spec}).build()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a part is frozen": lambda module: module.body[1].eval(),
    "leaves training": lambda module: module.eval(),
    "trains a part alone": lambda module: module.eval().body[2].train(),
    "fails": lambda module: setattr(module, "fails", True),
    "grows": lambda module: setattr(module, "grows", True),
    "a frozen norm": lambda module: module.body.__setitem__(1, FrozenNorm(8)),
    "a counted layer": lambda module: module.body.__setitem__(0, Counted(N_OBS, 8)),
    "a part is shared": lambda module: setattr(module, "again", module.body),
    "a part is removed": lambda module: module.body.__delitem__(2),
}


def put_train_on_the_instance(module: Any) -> None:
    module.body[1].train = lambda mode=True: module.body[1]


def run(forward: Callable[[bool], Any], module: Any, change: Callable[[Any], None]) -> list[Any]:
    """Return the modes seen in and after forward passes, before and after a change."""
    notes: list[Any] = []
    for explore in (True, False, True, True):
        torch.manual_seed(0)
        try:
            forward(explore)
        except ValueError as error:
            notes.append(str(error))
        notes.append([part.training for part in module.modules()])
        if len(notes) == 2:
            change(module)
    return [notes, module.seen, {name: value.tolist() for name, value in module.state_dict().items()}]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_modes_in_and_after_forward_passes(change: Callable[[Any], None]) -> None:
    """Changes come between forward passes of one call of sample()."""
    theirs = build()
    ours = copy.deepcopy(theirs)
    batch = {"p0": {Columns.OBS: torch.randn(5, N_OBS)}}
    inference = ExactInference(ours, None)

    def rllib_forward(explore: bool) -> None:
        theirs.forward_exploration(batch, t=0) if explore else theirs.forward_inference(batch)

    Counted.n_switches = 0
    want = run(rllib_forward, theirs["p0"], change)
    n_switches, Counted.n_switches = Counted.n_switches, 0
    got = run(lambda explore: inference.answer(copy.copy(batch), explore=explore, t=0), ours["p0"], change)
    assert got == want
    assert Counted.n_switches == n_switches


class SwitchingOtherwise(Noting):
    """Acts in training mode, for its dropout."""

    def forward_exploration(self, batch: dict, **kwargs: Any) -> dict:
        return self._forward_exploration(batch, **kwargs)


def test_modules_that_are_left_to_rllib() -> None:
    assert switch_of(build()["p0"]) is not None
    assert switch_of(build(SwitchingOtherwise)["p0"]) is None
    for change in (CHANGES["a frozen norm"], CHANGES["a counted layer"], put_train_on_the_instance):
        module = build()["p0"]
        change(module)
        assert switch_of(module) is None

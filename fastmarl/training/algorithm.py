"""An algorithm as the training loop sees it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.errors import CheckpointError
from fastmarl.core.public import public

LAST_RATE = 0.02  # of the learning rate, in the last update


class Learner(Protocol):
    """Trains the modules of a runner in place."""

    def learn(self, episodes: list[Any]) -> Mapping[str, Any]:
        """Update the modules; returns statistics for the learning curve."""

    def get_state(self) -> dict[str, Any]:
        """Return all that `learn()` depends on and the runner does not save."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state()` has returned."""


@public("fastmarl.training")
@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """An algorithm that `fastmarl train` can run.

    Args:
        name: of the file in examples/ that has it.
        help: one line for `fastmarl train --help`.
        defaults: of the options "env", "env_config", "steps", "num_envs", "gamma", "lr" and "hiddens".
        make_config: options -> config of the runner.
        make_learner: (runner, options, number of updates) -> learner.
        add_arguments: adds options of this algorithm alone to a parser, or a group of it.
        takes_policies: whether it can train several policies.
        takes_module: whether users may bring a network of their own.
    """

    name: str
    help: str
    defaults: Mapping[str, Any]
    make_config: Callable[[Namespace], EnvRunnerConfig]
    make_learner: Callable[[Any, Namespace, int], Learner]
    add_arguments: Callable[[Any], None] = lambda group: None
    takes_policies: bool = False
    takes_module: bool = True


def linear_schedule(optimizer: torch.optim.Optimizer, num_updates: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Let the learning rate fall linearly to a fiftieth.

    The rate depends on the number of the update alone, so a run that is resumed with more steps continues like one that
    had them from the start.

    Args:
        optimizer: its learning rate is that of the first update.
        num_updates: steps of the schedule until the rate is at its lowest.
    """

    def rate(update: int) -> float:
        return 1 - (1 - LAST_RATE) * min(1.0, update / num_updates)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def states_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `state_dict()` of each of `parts` (optimizers, schedules, modules), for `Learner.get_state()`."""
    return {name: part.state_dict() for name, part in parts.items()}


def load_states(parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Load what `states_of()` has returned, from a checkpoint too, where tensors are arrays.

    Raises:
        CheckpointError: the state has other parts, or they don't fit.
    """
    if state.keys() != parts.keys():
        raise CheckpointError(f"the learner has the parts {sorted(parts)}, but the checkpoint has {sorted(state)}")
    for name, part in parts.items():
        try:
            part.load_state_dict(_with_tensors(state[name]))
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's {name} does not fit: {' '.join(str(error).split())}") from error


def _with_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_tensors(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_tensors(each) for each in value]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

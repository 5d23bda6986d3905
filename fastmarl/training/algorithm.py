"""The interface between an algorithm and the training loop."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.envs.base import named_agents
from fastmarl.core.envs.form import possible_agents_of
from fastmarl.core.envs.states import NoStateError
from fastmarl.core.errors import CheckpointError, ConfigError
from fastmarl.core.objects.public import public
from fastmarl.runner.runner import MultiAgentEnvRunner

ONE_ENV: dict[str, Any] = {"num_envs_per_env_runner": 1, "gym_env_vectorize_mode": "sync", "num_env_workers": 0}
LAST_RATE = 0.02  # fraction of the learning rate that remains in the last update


class Learner(Protocol):
    """Trains the modules of a runner in place."""

    def learn(self, episodes: list[Any]) -> Mapping[str, Any]:
        """Update the modules; return statistics for the learning curve."""

    def get_state(self) -> dict[str, Any]:
        """Return all learner state that the runner does not save."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `get_state()`."""


@public("fastmarl.training")
@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """An algorithm for `fastmarl train`.

    Args:
        name: File name in examples/, without the suffix.
        help: Description for `fastmarl train --help`.
        defaults: Defaults of the options "env", "env_config", "steps", "num_envs", "gamma", "lr", "hiddens" and
            "reward_scale".
        make_config: Function that returns the runner config for the options.
        make_learner: Function that takes (runner, options, number of updates) and returns the learner.
        add_arguments: Function that adds algorithm-specific options to a parser or argument group.
        takes_policies: True if the algorithm can train several policies.
        takes_module: True if users can replace the network.
    """

    name: str
    help: str
    defaults: Mapping[str, Any]
    make_config: Callable[[Namespace], EnvRunnerConfig]
    make_learner: Callable[[Any, Namespace, int], Learner]
    add_arguments: Callable[[Any], None] = lambda group: None
    takes_policies: bool = False
    takes_module: bool = True

    def check(self, args: Namespace) -> None:
        """Check that the algorithm supports the environment, by creating a runner with one env, and its learner.

        Raises:
            FastmarlError: If the algorithm cannot train in this environment with these options.
        """
        with self.make_runner(replace(self.make_config(args), **ONE_ENV)) as runner:
            self.make_learner(runner, args, 1)

    def make_runner(self, config: EnvRunnerConfig) -> MultiAgentEnvRunner:
        """Create the runner of a run.

        Args:
            config: Result of `make_config()`.

        Raises:
            ConfigError: If the algorithm needs the global state and the env does not have one.
        """
        try:
            return MultiAgentEnvRunner(config)
        except NoStateError as error:
            # The user did not set the option named in this error, so the algorithm explains why it is needed.
            name = getattr(config.env, "__name__", config.env)
            raise ConfigError(f"{self.name} needs an env with state(), which returns the global state as one array; "
                              f"{name} has none: add it, or train ippo") from error  # fmt: skip


def agents_of(env: Any) -> list[Hashable]:
    """Return the ids of all agents of an env, in the same order in every process.

    Args:
        env: As in `runner.env.envs`.

    Raises:
        ConfigError: If the env does not declare its agents.
    """
    agents = possible_agents_of(env) or named_agents(env)
    if not agents:
        raise ConfigError("this algorithm needs an env that lists its agents in possible_agents; add it, or train ippo")
    return agents


def linear_schedule(optimizer: torch.optim.Optimizer, num_updates: int) -> LambdaLR:
    """Return a schedule that lowers the learning rate linearly to a fiftieth of its initial value.

    The rate depends only on the update index, so a run that is resumed with more steps continues as if it had been
    started with them.

    Args:
        optimizer: Optimizer with the learning rate of the first update.
        num_updates: Number of updates until the rate reaches its minimum.
    """

    def rate(update: int) -> float:
        return 1 - (1 - LAST_RATE) * min(1.0, update / num_updates)

    return LambdaLR(optimizer, rate)


def states_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `state_dict()` of each of `parts` (optimizers, schedules, modules), for `Learner.get_state()`."""
    return {name: part.state_dict() for name, part in parts.items()}


def load_states(parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Load states returned by `states_of()`, possibly from a checkpoint, in which tensors are arrays.

    Args:
        parts: Name -> object with `load_state_dict()`, as for `states_of()`.
        state: Name -> state, as returned by `states_of()`.

    Raises:
        CheckpointError: If the state has other names or does not match.
    """
    if state.keys() != parts.keys():
        raise CheckpointError(f"the learner has the parts {sorted(parts)}, but the checkpoint has "
                              f"{sorted(state)}: it may be from another fastmarl version")  # fmt: skip
    for name, part in parts.items():
        try:
            part.load_state_dict(_with_tensors(state[name]))
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's {name} does not match: {' '.join(str(error).split())}") from error
    for part in parts.values():
        if isinstance(part, LambdaLR):  # the saved learning rate may be that of another number of updates
            for group, base, factor in zip(part.optimizer.param_groups, part.base_lrs, part.lr_lambdas, strict=True):
                group["lr"] = base * factor(part.last_epoch)


def _with_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_tensors(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_tensors(each) for each in value]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

"""Time limits for episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.env_adapter import EnvAdapter
from fastmarl.core.envs.form import possible_agents_of
from fastmarl.core.envs.registry import env_creator, portable
from fastmarl.core.envs.resumable import supports_checkpoint
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.checks import is_integer

PASSED_ON = (  # attributes copied from the env, if present
    "observation_spaces", "action_spaces", "observation_space", "action_space", "state", "state_space", "metadata",
    "agents",
)  # fmt: skip
OF_BATCHES = ("num_envs", "groups", "possible_agents", "may_take_turns", "seeds_each_episode")


def time_limited(env: Any, max_steps: int) -> Callable[[dict], TimeLimitedEnv | TimeLimitedBatch]:
    """Return a callable that creates the same environment, but truncates episodes after `max_steps` env steps.

    Pass it as `EnvRunnerConfig(env=...)`, or to anything else that accepts an env.

    Args:
        env: Any value of `EnvRunnerConfig(env=...)`. A batch must be able to reset envs individually; a Gymnasium
            vector env, for example, needs the autoreset mode DISABLED.
        max_steps: Maximum number of steps per episode, >= 1.

    Raises:
        ConfigError: If `max_steps` is invalid.
        EnvCheckError: If the env is unknown.
    """
    if not is_integer(max_steps) or max_steps < 1:
        raise ConfigError(f"max_steps must be a positive integer, got {max_steps!r}")
    return TimeLimit(env, int(max_steps))


class TimeLimit:
    """Creates time-limited environments. Can be pickled for worker processes.

    Attributes:
        env: The environment, in a form that other processes can use.
        max_steps: Maximum number of steps per episode.
    """

    def __init__(self, env: Any, max_steps: int):
        self.env, self.max_steps = portable(env), max_steps
        self.__name__ = f"{getattr(env, '__name__', env)}, at most {max_steps} steps"

    def __call__(self, env_config: dict) -> TimeLimitedEnv | TimeLimitedBatch:
        env = as_multi_agent_env(env_creator(self.env)(env_config))
        return (TimeLimitedBatch if isinstance(env, ArrayEnv) else TimeLimitedEnv)(env, self.max_steps)


class _Counting(EnvAdapter):
    """Base class of both adapters: keeps the step count, which is part of the state of a running episode.

    Args:
        env: The environment.
        max_steps: Maximum number of steps per episode.
        passed_on: Names of attributes to copy from the environment.
    """

    def __init__(self, env: Any, max_steps: int, passed_on: Sequence[str]):
        self.env, self.max_steps = env, max_steps
        self._t: Any = 0
        self.supports_checkpoint = supports_checkpoint(env)
        for name in passed_on:
            if hasattr(env, name):
                setattr(self, name, getattr(env, name))

    def get_state(self) -> Any:
        """Return the state of the adapted env and the step count."""
        return {"env": self.env.get_state(), "steps": copy(self._t)}

    def set_state(self, state: Any) -> None:
        """Restore a state returned by `get_state()`."""
        self.env.set_state(state["env"])
        self._t = copy(state["steps"])


class TimeLimitedEnv(_Counting):
    """Truncates the episodes of a multi-agent env after `max_steps` steps."""

    def __init__(self, env: Any, max_steps: int):
        super().__init__(env, max_steps, PASSED_ON)
        self.possible_agents = possible_agents_of(env)

    def get_observation_space(self, agent_id: Any) -> gym.Space:
        return env_spaces(self.env, agent_id)[0]

    def get_action_space(self, agent_id: Any) -> gym.Space:
        return env_spaces(self.env, agent_id)[1]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._t = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Step the env; at the last allowed step, set "__all__" in truncateds."""
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        self._t += 1
        if self._t >= self.max_steps and not terminateds.get("__all__", False):
            truncateds = {**truncateds, "__all__": True}
        return obs, rewards, terminateds, truncateds, infos


class TimeLimitedBatch(_Counting, ArrayEnv):
    """Truncates the episodes of each env in a batch after `max_steps` steps."""

    def __init__(self, env: ArrayEnv, max_steps: int):
        super().__init__(env, max_steps, (*PASSED_ON, *OF_BATCHES))
        self._t = np.zeros(env.num_envs, np.int64)

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        """Reset the given envs and their step counts."""
        self._t[env_indices] = 0
        self.env.reset(env_indices, out, seeds=seeds)

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        """Step the envs and truncate the episodes that have reached `max_steps`."""
        self.env.step(actions, out)
        self._t += 1
        np.logical_or(out.truncated, (self._t >= self.max_steps) & ~out.terminated, out=out.truncated)

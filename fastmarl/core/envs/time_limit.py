"""Time limits for episodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from fastmarl.core.checks import is_integer
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.env_adapter import EnvAdapter
from fastmarl.core.envs.form import possible_agents_of
from fastmarl.core.envs.registry import env_creator, portable
from fastmarl.core.errors import ConfigError, EnvCheckError

LIMITS = ("max_steps", "max_cycles")  # options of envs


def time_limited(env: Any, max_steps: int) -> Callable[[dict], TimeLimitedEnv]:
    """Return a creator of the same environment with episodes of at most `max_steps` env steps, then truncated.

    Pass it as `EnvRunnerConfig(env=...)`, or to anything else that takes an env.

    Args:
        env: Any value of `EnvRunnerConfig(env=...)`, except a batch that steps in arrays.
        max_steps: Maximum number of steps, at least 1.

    Raises:
        ConfigError: If `max_steps` is invalid.
        EnvCheckError: If the env is unknown or, when it is created, turns out to be a batch.
    """
    if not is_integer(max_steps) or max_steps < 1:
        raise ConfigError(f"max_steps must be an integer of at least 1, got {max_steps!r}")
    return _Limited(env, int(max_steps))


class _Limited:
    """Creates time-limited environments, also in worker processes."""

    def __init__(self, env: Any, max_steps: int):
        self._env, self._max_steps = portable(env), max_steps
        self.__name__ = f"{getattr(env, '__name__', env)}, at most {max_steps} steps"

    def __call__(self, env_config: dict) -> TimeLimitedEnv:
        return TimeLimitedEnv(env_creator(self._env)(env_config), self._max_steps)


class TimeLimitedEnv(EnvAdapter):
    """Adapts an environment to the multi-agent protocol, and truncates its episodes.

    Args:
        env: Any environment that a runner accepts, except a batch.
        max_steps: Maximum number of steps of an episode.

    Raises:
        EnvCheckError: If `env` is anything else.
    """

    def __init__(self, env: Any, max_steps: int):
        self.env = as_multi_agent_env(env)
        if isinstance(self.env, ArrayEnv):
            parameters = inspect.signature(type(env)).parameters
            options = [f"env_config={{{name!r}: {max_steps}}}" for name in LIMITS if name in parameters]
            own = f"give {options[0]} instead" if options else "it must cut its episodes itself"
            raise EnvCheckError(f"time limits are for single environments, and {type(env).__name__} is a batch that "
                                f"steps in arrays; {own}")  # fmt: skip
        self.max_steps = max_steps
        self.possible_agents = possible_agents_of(self.env)
        self._t = 0

    def get_observation_space(self, agent_id: Any) -> gym.Space:
        """Return an agent's observation space in the adapted env."""
        return env_spaces(self.env, agent_id)[0]

    def get_action_space(self, agent_id: Any) -> gym.Space:
        """Return an agent's action space in the adapted env."""
        return env_spaces(self.env, agent_id)[1]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Reset the env and the step count."""
        self._t = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Step the env; the last allowed step sets "__all__" in truncateds."""
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        self._t += 1
        if self._t >= self.max_steps and not terminateds.get("__all__", False):
            truncateds = {**truncateds, "__all__": True}
        return obs, rewards, terminateds, truncateds, infos

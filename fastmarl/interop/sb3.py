"""Stable-Baselines3 vector environment over the agents of multi-agent environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.packages import how_to_install
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.masks import choices_of, mask_key
from fastmarl.interop.agent_rows import AgentRows

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise ImportError(f"fastmarl.interop.sb3 needs stable-baselines3: {how_to_install('stable_baselines3')}") from error

ACTIVE, MASKS, RENDER_MODE = "active", "action_masks", "render_mode"
Indices = int | Iterable[int] | None


@public("fastmarl.interop.sb3")
class AgentVecEnv(VecEnv):
    """A Stable-Baselines3 VecEnv whose environments are agents that share a policy.

    ```python
    envs = AgentVecEnv("mpe2.simple_spread_v3", num_envs=8)  # 24 rows: 8 copies with 3 agents each
    model = PPO("MlpPolicy", VecMonitor(envs)).learn(100_000)
    ```

    Row e * A + a is agent `agents[a]` of env e. When an agent finishes, its info contains "terminal_observation" and
    "TimeLimit.truncated"; agents remaining at the end of an episode are done with it, and all agents of an env start
    the next episode at the same time. Each info contains "active", which is False if the agent does not act on the
    observation because it waits, or because it has finished while others in its env continue. Stable-Baselines3 also
    learns from these rows, and counts rows of finished agents, with observations and rewards of zero, towards their
    next episode. Prefer `fastmarl train` if agents die early.

    Action masks, in observations under "action_mask" or in infos, are available to MaskablePPO of sb3-contrib. An
    observation with a mask and one other entry is reduced to that entry.

    Args:
        env: Environment as in `EnvRunnerConfig(env=...)`. All agents must have the same spaces and be in
            `possible_agents`.
        num_envs: Number of environment copies.
        env_config: Options of the environment.
        max_steps: Env steps after which episodes are truncated; None for no limit.
        num_env_workers: Number of processes that step the environments; 0 for one per core, None for the current
            process.

    Attributes:
        agents: Ids of the A agents.
        env_index: int64 [num_envs], the env of each row.
        num_envs: Number of rows.

    Raises:
        ConfigError: If agents have different spaces, or an argument is out of range.
        ImportError: If stable-baselines3 is missing.
    """

    def __init__(
        self,
        env: Any,
        num_envs: int = 1,
        *,
        env_config: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
        num_env_workers: int | None = None,
    ):
        self._rows = AgentRows(env, num_envs, env_config, max_steps, num_env_workers)
        self.agents, self.env_index = self._rows.agents, self._rows.env_index
        space: Any = self._rows.observation_space
        action_space = self._rows.action_space
        self._entry: str | None = None  # the entry that replaces the observation
        if (key := mask_key(space, action_space)) is not None and len(others := set(space) - {key}) == 1:
            (self._entry,) = others
        self._actions: Any = None
        super().__init__(len(self._rows), space if self._entry is None else space[self._entry], action_space)

    def reset(self) -> Any:
        """Start episodes in all envs, with the seeds from `seed()`; return observations [num_envs, ...].

        Raises:
            ConfigError: If `set_options()` was called; use `env_config` instead.
        """
        if any(self._options):
            raise ConfigError(f"reset() takes no options, got {self._options}; pass them in env_config")
        seeds = [seed for seed in self._seeds[:: len(self.agents)] if seed is not None]
        self._rows.reset(np.arange(len(self._rows.is_over)), seeds or None)
        self._reset_seeds()
        self.reset_infos = self._infos()
        return self._observations()

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the next reset of env e with seed + e; return the seed of each row's env.

        Args:
            seed: The seed, or None for a random one.
        """
        chosen = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        by_env = self._rows.seed(chosen)
        self._seeds = [by_env[env_index] for env_index in self.env_index]
        return self._seeds

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions [num_envs, ...] for `step_wait()`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict]]:
        """Step all envs, and reset those whose episode is over.

        Returns:
            (observations [num_envs, ...], rewards float32, dones bool, infos).

        Raises:
            FinishedAgentError: If a finished agent is observed again or receives a reward.
            ConfigError: If actions are not in the space.
        """
        rows = self._rows
        rows.step(self._actions)
        rewards, truncated = rows.rewards.reshape(-1).astype(np.float32), rows.truncated.reshape(-1)
        dones = rows.terminated.reshape(-1) | truncated
        is_limit, infos = truncated & ~rows.terminated.reshape(-1), self._infos()
        for row in np.flatnonzero(dones).tolist():
            infos[row]["terminal_observation"] = self._seen(rows.row(row))
            infos[row]["TimeLimit.truncated"] = bool(is_limit[row])
        if len(over := np.flatnonzero(rows.is_over)):
            rows.reset(over)
            of_reset = self._infos()
            for row in np.flatnonzero(np.isin(self.env_index, over)).tolist():
                self.reset_infos[row] = of_reset[row]
                infos[row][ACTIVE] = of_reset[row][ACTIVE]
        return self._observations(), rewards, dones, infos

    def _observations(self) -> Any:
        return self._seen(self._rows.observations())

    def _seen(self, observation: Any) -> Any:
        return observation if self._entry is None else observation[self._entry]

    def _infos(self) -> list[dict]:
        """Return copies of the infos of all rows, with "active"."""
        flags = self._rows.active.reshape(-1).tolist()
        found: list[dict] = [{ACTIVE: is_active} for is_active in flags]
        for row, info in self._rows.infos:
            found[row].update(deepcopy(info))
            found[row][ACTIVE] = flags[row]
        return found

    def action_masks(self) -> np.ndarray:
        """Return the allowed actions, bool [num_envs, choices]; all True in inactive rows."""
        return self._rows.action_masks()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return the attribute `attr_name` of the env of each row in `indices` (None for all rows)."""
        rows = self._get_indices(indices)
        if attr_name == MASKS:
            self._check_masks()
            return [lambda row=row: self.action_masks()[row] for row in rows]
        if attr_name == RENDER_MODE:
            envs = [self._rows.env_of(row) for row in rows]
            return [getattr(getattr(env, "unwrapped", env), attr_name, None) for env in envs]
        found = self._rows.attribute(attr_name)
        return [found[self.env_index[row]] for row in rows]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set `attr_name` to `value` in the env (or batch of envs) of each row in `indices` (None for all rows)."""
        for row in self._firsts(indices).values():
            self._rows.set_attribute(row, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any) -> list:
        """Call a method once on each env that has any of the rows.

        Args:
            method_name: Name of the method.
            method_args: Its positional arguments.
            indices: Indices of the rows; None for all.
            method_kwargs: Its keyword arguments.

        Returns:
            The result for the env of each row.
        """
        if method_name == MASKS:
            self._check_masks()
            masks = self.action_masks()
            return [masks[row] for row in self._get_indices(indices)]
        found = {
            env: self._rows.call(row, method_name, *method_args, **method_kwargs)
            for env, row in self._firsts(indices).items()
        }
        return [found[id(self._rows.env_of(row))] for row in self._get_indices(indices)]

    def _firsts(self, indices: Indices) -> dict[int, int]:
        """Return id(env) -> one of these rows, for each env that has any of them."""
        rows = list(self._get_indices(indices))
        return {id(self._rows.env_of(row)): row for row in reversed(rows)}

    def _check_masks(self) -> None:
        if not choices_of(self.action_space):
            raise AttributeError(f"the action space {self.action_space} does not support masks")

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: Indices = None) -> list[bool]:
        """Return False for each row in `indices` (None for all), as no `wrapper_class` wraps individual agents."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return an image of each env (not of each row)."""
        return self._rows.render()

    def close(self) -> None:
        """Close all envs; no row can be stepped afterwards."""
        self._rows.close()

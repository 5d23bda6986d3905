"""Gymnasium vector environment over the agents of multi-agent environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.interop.agent_rows import AgentRows

ACTIVE = "active"
RESERVED = {ACTIVE, "final_obs", "final_info"}  # dropped from the infos of envs


@public("fastmarl.interop.gymnasium")
class AgentVectorEnv(gym.vector.VectorEnv):
    """A Gymnasium vector environment whose sub-environments are agents.

    ```python
    envs = AgentVectorEnv("mpe2.simple_spread_v3", num_envs=8)  # 24 rows: 8 copies with 3 agents each
    observations, infos = envs.reset(seed=0)
    observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    ```

    Row e * A + a is agent `agents[a]` of env e. `infos["active"]`, bool [num_envs], is True where an agent acts on its
    observation. It is False for waiting agents, whose rows keep the last observation, and for finished agents, whose
    rows contain zeros until their env starts another episode. Actions of these rows are ignored, so exclude the rows
    from the loss. Rewards are from the current step, even for waiting agents. Agents remaining at the end of an episode
    are terminated or truncated with it.

    An agent that finishes before others cannot be reset alone: in every mode, its row rests until its env is reset.

    Args:
        env: Environment as in `EnvRunnerConfig(env=...)`, such as a PettingZoo name, a class, a function or a
            `fastmarl` env. All agents must have the same spaces and be in `possible_agents`.
        num_envs: Number of environment copies.
        env_config: Options of the environment.
        autoreset_mode: When to reset an env after its episode; see `gymnasium.vector.AutoresetMode`. With "SameStep",
            `infos["final_obs"]` and `infos["final_info"]` contain the last observations and infos of finished agents.
        max_steps: Env steps after which episodes are truncated; None for no limit.
        num_env_workers: Number of processes that step the environments; 0 for one per core, None for the current
            process.

    Attributes:
        agents: Ids of the A agents.
        env_index: int64 [num_envs], the env of each row.
        num_envs: Number of rows.

    Raises:
        ConfigError: If agents have different spaces, or an argument is out of range.
    """

    def __init__(
        self,
        env: Any,
        num_envs: int = 1,
        *,
        env_config: Mapping[str, Any] | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_steps: int | None = None,
        num_env_workers: int | None = None,
    ):
        self.closed = True  # so that __del__() does nothing if an error follows
        self._mode = AutoresetMode(autoreset_mode)
        self._rows = AgentRows(env, num_envs, env_config, max_steps, num_env_workers)
        self.agents, self.env_index, self.num_envs = self._rows.agents, self._rows.env_index, len(self._rows)
        self.single_observation_space = self._rows.observation_space
        self.single_action_space = self._rows.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        first = self._rows.env_of(0)
        self.render_mode = getattr(getattr(first, "unwrapped", first), "render_mode", None)
        self.metadata = {"autoreset_mode": self._mode}
        self.closed = False

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes.

        Args:
            seed: An integer s to seed env e with s + e, or a list with one seed per env (not per row). None continues
                the random streams.
            options: {"reset_mask": bool [num_envs]} resets only these rows, which must be all rows of their envs.

        Returns:
            (observations [num_envs, ...], infos).

        Raises:
            ConfigError: If an option is unknown, or a mask or list of seeds does not match.
        """
        rows, given = self._rows, dict(options or {})
        mask = given.pop("reset_mask", None)
        if given:
            raise ConfigError(f"the only option is 'reset_mask', got {list(given)}; pass env options in env_config")
        if mask is not None and not rows.is_begun:
            raise ConfigError("reset_mask requires all envs to have been reset: call reset() without reset_mask first, "
                              "and again after any error")  # fmt: skip
        env_indices = np.arange(len(rows.is_over)) if mask is None else self._masked(mask)
        seeds = seed if seed is None else self._seeds(seed)
        rows.reset(env_indices, None if seeds is None else [seeds[env_index] for env_index in env_indices])
        return rows.observations(), self._infos()

    def _seeds(self, seed: int | Sequence[int]) -> list[int]:
        n, given = len(self._rows.is_over), np.asarray(seed)
        if given.dtype.kind not in "iu" or (given < 0).any():
            raise ConfigError(f"expected non-negative integers as seeds, got {seed!r:.200}")
        if not given.ndim:
            return self._rows.seed(int(given))
        if given.shape != (n,):
            raise ConfigError(f"expected a seed for each of {n} envs, got {len(given)}")
        self._rows.seed(int(given[0]))
        return [int(each) for each in given]

    def _masked(self, mask: Any) -> np.ndarray:
        by_env = np.asarray(mask)
        if by_env.shape != (self.num_envs,) or by_env.dtype != np.bool_:
            raise ConfigError(f"expected a reset_mask of bool [{self.num_envs}], got {by_env.dtype} "
                              f"{list(by_env.shape)}")  # fmt: skip
        by_env = by_env.reshape(-1, len(self.agents))
        if (by_env.any(1) != by_env.all(1)).any():
            raise ConfigError("all agents of an env start an episode together: reset_mask must select all or none")
        return np.flatnonzero(by_env[:, 0])

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all envs.

        Args:
            actions: Actions [num_envs, ...].

        Returns:
            (observations [num_envs, ...], rewards float64, terminations bool, truncations bool, infos).

        Raises:
            FinishedAgentError: If a finished agent is observed again or receives a reward.
            ConfigError: If actions are not in the space.
        """
        rows = self._rows
        over = np.flatnonzero(rows.is_over)
        rows.step(actions)
        infos = rows.infos
        if self._mode is AutoresetMode.NEXT_STEP and len(over):
            rows.reset(over)
            infos = infos + rows.infos
        finals: dict[str, Any] = {}
        over = np.flatnonzero(rows.is_over)
        if self._mode is AutoresetMode.SAME_STEP:
            finals, infos = self._finals(infos)
            if len(over):
                rows.reset(over)
                infos = infos + rows.infos
        flat = (each.reshape(-1) for each in (rows.rewards, rows.terminated, rows.truncated))
        return rows.observations(), *flat, self._infos(infos, finals)

    def _finals(self, infos: list[tuple[int, dict]]) -> tuple[dict[str, Any], list[tuple[int, dict]]]:
        """Return the last observations and infos of finished agents, and the infos of all others."""
        ended = (self._rows.terminated | self._rows.truncated).reshape(-1)
        finals: dict[str, Any] = {}
        last: dict[int, dict] = {}
        for row, info in infos:
            if ended[row]:
                last.setdefault(row, {}).update(info)
        for row in np.flatnonzero(ended).tolist():
            final = {"final_obs": self._rows.row(row), "final_info": last.get(row, {})}
            finals = self._add_info(finals, final, row)
        is_over = self._rows.is_over[self.env_index]
        return finals, [(row, info) for row, info in infos if not (ended[row] or is_over[row])]

    def _infos(self, infos: list[tuple[int, dict]] | None = None, finals: dict[str, Any] | None = None) -> dict:
        found: dict[str, Any] = finals or {}
        for row, info in self._rows.infos if infos is None else infos:
            found = self._add_info(found, {key: info[key] for key in info.keys() - RESERVED}, row)
        found[ACTIVE] = self._rows.active.reshape(-1).copy()
        return found

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        """Add the info of a row as in Gymnasium; values of different types or shapes become an object array."""
        for key, value in env_info.items():
            column = vector_infos.get(key)
            if isinstance(column, np.ndarray) and column.dtype != object and not _fits(column, value):
                objects = np.full(self.num_envs, None, object)
                for row in np.flatnonzero(vector_infos[f"_{key}"]).tolist():
                    objects[row] = column[row]
                vector_infos[key] = objects
        return super()._add_info(vector_infos, env_info, env_num)

    def render(self) -> tuple[Any, ...]:
        """Return the rendered frame of each env (not of each row)."""
        return tuple(self._rows.render())

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return the attribute `name` of the env of each row."""
        found = self._rows.attribute(name)
        return tuple(found[env_index] for env_index in self.env_index)

    def close_extras(self, **kwargs: Any) -> None:
        """Close all envs; no row can be stepped afterwards."""
        self._rows.close()


def _fits(column: np.ndarray, value: Any) -> bool:
    """Return True if a column of infos can store a value without changing it."""
    array = np.asarray(value)
    return array.shape == column.shape[1:] and np.can_cast(array.dtype, column.dtype, "safe")

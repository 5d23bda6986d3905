"""Presents the agents of several envs as rows of arrays, which other frameworks treat as independent environments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.envs.arrays import COMMON, ArrayEnv, StepArrays
from fastmarl.core.envs.time_limit import time_limited
from fastmarl.core.errors import (
    ActionMaskError,
    ConfigError,
    FinishedAgentError,
    RewardError,
    RunnerStoppedError,
    RunningEpisodeError,
)
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.core.spaces.masks import MASK, choices_of, mask_key
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.core.spaces.values import can_hold, choice_ranges, described
from fastmarl.interop.env_batch import EnvBatch, WorkerBatch
from fastmarl.runner.loop.envs import Envs

MOST_LAYERS = 20  # attributes named `env` may form a cycle


class AgentRows:
    """Steps envs with one row per agent: row e * A + a is agent `agents[a]` of env e.

    A row is waiting while its agent is not observed, and resting after its agent has finished, until the env is reset.

    Args:
        env, env_config: As in `EnvRunnerConfig`. All agents must have the same spaces and be in `possible_agents`.
        num_envs: Number of copies of the env, E.
        max_steps: Env steps after which episodes are truncated; None for no limit.
        num_env_workers: Number of processes that step the envs; 0 for one per core, None for the current process.

    Attributes:
        envs: The envs, or a batch of them.
        agents: Ids of the agents in an env, [A].
        observation_space, action_space: Spaces of a single agent.
        active: bool [E, A], True for the agents that act in the next step.
        rewards: float64 [E, A], rewards of the last step.
        terminated, truncated: bool [E, A], True if the agent finished in the last step. Agents remaining at the end of
            an episode finish with it.
        is_over: bool [E], True for envs that need a reset.
        is_terminated: bool [E], True for envs in `is_over` that were not truncated.
        is_begun: True after the first reset; False after an error until all envs are reset.
        infos: List of (row, info) from the last step or reset, for agents with an info.

    Raises:
        ConfigError: If agents have different spaces or the env does not name its agents.
    """

    def __init__(
        self,
        env: Any,
        num_envs: int,
        env_config: Mapping[str, Any] | None,
        max_steps: int | None,
        num_env_workers: int | None,
    ):
        config = EnvRunnerConfig(
            env=env if max_steps is None else time_limited(env, max_steps),
            env_config=env_config or {},
            num_envs_per_env_runner=num_envs,
            gym_env_vectorize_mode="sync" if num_env_workers is None else "async",
            num_env_workers=num_env_workers or 0,
        )
        self._all = Envs(config)
        try:
            self._set_up(num_envs)
        except BaseException:
            self._all.close()
            raise

    def _set_up(self, num_envs: int) -> None:
        self.agents = self._all.named_agents
        self._place = {agent: place for place, agent in enumerate(self.agents)}
        self.observation_space, self.action_space = spaces = self._spaces()
        self._layout, self._actions = RowLayout(self.observation_space), RowLayout(self.action_space)
        if any(leaf.dtype == object for leaf in (*self._layout.leaves, *self._actions.leaves)):
            raise ConfigError(f"arrays can't store {self.observation_space} and {self.action_space}: their parts must "
                              f"be Box, Discrete, MultiDiscrete or MultiBinary")  # fmt: skip
        self._ranges = [choice_ranges(space) for space in leaf_spaces(self.action_space)]
        self.envs = self._all.all
        self._is_batch = self._all.is_batch
        self._batch: ArrayEnv = self.envs[0] if self._is_batch else self._as_batch()
        if len(self._batch.groups) > 1:
            raise ConfigError(f"all agents of a batch must be in one group, got {list(self._batch.groups)}")
        self._group = next(iter(self._batch.groups))
        self._out = self._batch.new_arrays()
        shape = num_envs, len(self.agents)
        self.active, self.terminated, self.truncated = np.zeros((3, *shape), np.bool_)
        self._has_joined, self._has_ended = np.zeros((2, *shape), np.bool_)
        self.rewards, self.is_over = np.zeros(shape), np.ones(num_envs, np.bool_)
        self.is_terminated = np.zeros(num_envs, np.bool_)
        self._obs = [np.zeros((*shape, *leaf.shape), leaf.dtype) for leaf in self._layout.leaves]
        self.infos: list[tuple[int, dict]] = []
        self._mask_key = mask_key(*spaces)
        self._masks_in_infos = np.ones((len(self), sum(choices_of(self.action_space))), np.bool_)
        self._rng = np.random.default_rng()
        self.is_begun = self._is_closed = False

    def _spaces(self) -> tuple[gym.Space, gym.Space]:
        if not self.agents:
            raise ConfigError("each agent gets a row, so the env must list all of them in possible_agents")
        first = self._all.spaces(0, self.agents[0])
        for env_index in range(len(self._all.all)):
            for agent in self.agents:
                if (spaces := self._all.spaces(env_index, agent)) != first:
                    raise ConfigError(f"all agents must have the same spaces, but agent {agent!r} of env {env_index} "
                                      f"has {spaces}, and agent {self.agents[0]!r} has {first}: pad observations and "
                                      f"actions (SuperSuit's pad_observations_v0, pad_action_space_v0), or train with "
                                      f"fastmarl.MultiAgentEnvRunner and separate policies")  # fmt: skip
        return first

    def _as_batch(self) -> EnvBatch:
        spaces = self.observation_space, self.action_space
        if self._all.workers is not None:
            return WorkerBatch(self._all.workers, self.agents, *spaces)
        return EnvBatch(self.envs, self.agents, *spaces)

    @contextmanager
    def _all_over_after_errors(self) -> Iterator[None]:
        """Require a reset of all envs after an error, because some of them may not have completed the step."""
        try:
            yield
        except BaseException:
            self.is_over[:], self.is_begun = True, False
            if isinstance(self._batch, EnvBatch):
                self._batch.forget()
            raise

    def __len__(self) -> int:
        return self.active.size

    @property
    def env_index(self) -> np.ndarray:
        """The env of each row, int64."""
        return np.arange(len(self)) // len(self.agents)

    def observations(self) -> Any:
        """Return copies of the observations [E A, ...], nested like the space.

        Waiting rows contain the last observation of the agent; resting rows contain zeros. The final observation of an
        agent is kept until the next step or reset.
        """
        return self._layout.nest([leaf.reshape(len(self), *leaf.shape[2:]).copy() for leaf in self._obs])

    def row(self, row: int) -> Any:
        """Return a copy of the observation in a row."""
        return self._layout.nest([leaf[divmod(row, len(self.agents))].copy() for leaf in self._obs])

    def seed(self, seed: int) -> list[int]:
        """Seed the generator for later resets; return the seeds for the next reset of all envs."""
        self._rng = np.random.default_rng(seed)
        return [seed + env_index for env_index in range(len(self.is_over))]

    def reset(self, env_indices: np.ndarray, seeds: Sequence[int] | None = None) -> None:
        """Start new episodes in these envs.

        Args:
            env_indices: int64, ascending.
            seeds: One seed per env; None to continue the random streams.
        """
        self._check_open()
        if not len(env_indices):
            return
        with self._all_over_after_errors():
            self._begin(env_indices, seeds)
            group = self._out.groups[self._group]
            self.active[env_indices] = self._has_joined[env_indices] = group.present[env_indices]
            for own, leaf in zip(self._obs, self._layout.leaves_of(group.obs), strict=True):
                seen = self.active[env_indices].reshape(*group.present[env_indices].shape, *[1] * (own.ndim - 2))
                own[env_indices] = np.where(seen, leaf[env_indices], 0)
            self._has_ended[env_indices] = self.is_over[env_indices] = self.is_terminated[env_indices] = False
            self._take_infos(env_indices)
        self.is_begun = True

    def _begin(self, env_indices: np.ndarray, seeds: Sequence[int] | None) -> None:
        if seeds is None and self._batch.seeds_each_episode:
            seeds = self._rng.integers(2**31, size=len(env_indices)).tolist()
        self._batch.reset(env_indices, self._cleared(present=True), seeds=seeds)

    def _cleared(self, *, present: Any) -> StepArrays:
        group = self._out.groups[self._group]
        group.rewards[:], group.present[:] = 0.0, present
        group.terminated[:] = group.truncated[:] = self._out.terminated[:] = self._out.truncated[:] = False
        self._out.infos.clear()
        return self._out

    def step(self, actions: Any) -> None:
        """Step all envs with running episodes.

        Args:
            actions: Actions [E A, ...], nested like the space. Actions of inactive rows are ignored.
        """
        self._check_open()
        if not self.is_begun:
            raise RunningEpisodeError("no episode is running: call reset() before step(), also after an error")
        given, over = self._given(actions), np.flatnonzero(self.is_over)
        if self._is_batch and len(over):  # a batch steps all of its envs
            self._begin(over, None)
        out = self._cleared(present=self._has_joined & ~self._has_ended)
        out.groups[self._group].present[over] = True
        with self._all_over_after_errors():
            self._batch.step({self._group: given}, out)
            if len(over):
                self._forget(over)
            self._take(out)

    def _forget(self, over: np.ndarray) -> None:
        """Clear the results of envs that wait for a reset."""
        out, group = self._out, self._out.groups[self._group]
        for array in (group.present, group.terminated, group.truncated, group.rewards, out.terminated, out.truncated):
            array[over] = 0
        out.infos[:] = [info for info in out.infos if info[0] not in over]

    def _take(self, out: StepArrays) -> None:
        """Update all attributes with the results of a step."""
        group = out.groups[self._group]
        present, self.rewards = group.present, group.rewards.copy()
        ended, is_over = group.terminated | group.truncated, out.terminated | out.truncated
        if not np.isfinite(self.rewards).all():
            env_index, place = np.argwhere(~np.isfinite(self.rewards))[0].tolist()
            problem = f"expected a finite reward, got {self.rewards[env_index, place]}"
            raise RewardError(env_index, self.agents[place], 0, problem)
        if self._has_ended.any():
            self._check_ended(self._has_ended & (present | ended | (group.rewards != 0)))
            for own in self._obs:
                own[self._has_ended] = 0
        self._has_joined |= present | ended
        if is_over.any():
            left = is_over[:, None] & self._has_joined & ~self._has_ended & ~ended
            group.terminated[left & out.terminated[:, None]] = True
            group.truncated[left & ~out.terminated[:, None]] = True
            self._has_ended |= left
            self.is_over |= is_over
            self.is_terminated |= out.terminated
        self.terminated, self.truncated = group.terminated.copy(), group.truncated.copy()
        is_seen = present.all()
        for own, leaf in zip(self._obs, self._layout.leaves_of(group.obs), strict=True):
            where = True if is_seen else present.reshape(*present.shape, *[1] * (own.ndim - 2))
            np.copyto(own, leaf, where=where)
        self._has_ended |= ended
        self.active = present & ~self._has_ended
        self._take_infos(np.arange(len(self.is_over)))

    def _given(self, actions: Any) -> Any:
        """Check the actions; return them per env and agent, with zeros for inactive agents."""
        given, misfit = [], f"expected actions of {self.action_space} for {len(self)} rows, got"
        try:
            arrays = [np.asarray(array) for array in self._actions.leaves_of(actions)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(f"{misfit} {actions!r:.200}") from error
        for leaf, array, ranges in zip(self._actions.leaves, arrays, self._ranges, strict=True):
            if array.shape != (len(self), *leaf.shape) or not can_hold(leaf.dtype, array):
                raise ConfigError(f"{misfit} {described(array)}")
            by_agent = array.reshape(*self.active.shape, *leaf.shape).astype(leaf.dtype)
            by_agent[~self.active] = 0
            if ranges is not None:
                numbers = by_agent[self.active].reshape(-1, len(ranges[0]))
                if ((numbers < ranges[0]) | (numbers > ranges[1])).any():
                    raise ConfigError(f"{misfit} {described(numbers)}")
            given.append(by_agent)
        return self._actions.nest(given)

    def _check_ended(self, wrong: np.ndarray) -> None:
        if wrong.any():
            env_index, place = np.argwhere(wrong)[0].tolist()
            problem = ("a finished agent was observed again or received a reward, but its row can't start another "
                       "episode before the env is reset: use a new agent id, or train with "
                       "fastmarl.MultiAgentEnvRunner, whose options respawn and late_rewards allow it")  # fmt: skip
            raise FinishedAgentError(env_index, self.agents[place], 0, problem)

    def _take_infos(self, env_indices: np.ndarray) -> None:
        """Store the infos of these envs, and the action masks in them, which are valid for the next step only."""
        self.infos = []
        self._masks_in_infos.reshape(*self.active.shape, -1)[env_indices] = True
        for env_index, agent, info in self._out.infos:
            first = env_index * len(self.agents)
            of_all = agent == COMMON
            rows = range(first, first + len(self.agents)) if of_all else [first + self._place[agent]]
            self.infos.extend((row, info) for row in rows)
            if self._masks_in_infos.size and (mask := info.get(MASK)) is not None:
                self._masks_in_infos[rows] = self._mask(mask, env_index, agent)

    def _mask(self, given: Any, env_index: int, agent: Any) -> np.ndarray:
        mask = np.concatenate([np.ravel(part) for _, part in flatten_struct(given)])
        if mask.shape != self._masks_in_infos.shape[1:]:
            problem = f"expected an {MASK} of {self._masks_in_infos.shape[1]} numbers in infos, got {given!r:.200}"
            raise ActionMaskError(env_index, agent, 0, problem)
        return mask != 0

    def action_masks(self) -> np.ndarray:
        """Return the allowed actions, bool [E A, choices]; all True in inactive rows."""
        if self._mask_key is None:
            masks = self._masks_in_infos.copy()
        else:
            obs: Any = self.observations()[self._mask_key]
            parts = [part for _, part in flatten_struct(obs)]
            masks = np.concatenate([part.reshape(len(self), -1) for part in parts], 1) != 0
        masks[~self.active.reshape(-1)] = True
        return masks

    def env_of(self, row: int) -> Any:
        """Return the env of a row, or the batch that contains this env."""
        return self._batch if self._is_batch else self.envs[row // len(self.agents)]

    def attribute(self, name: str) -> list[Any]:
        """Return an attribute of each env; a batch attribute is repeated for each env in the batch."""
        envs: list[Any] = [self._batch] * len(self.is_over) if self._is_batch else self.envs
        if self._all.workers is not None:
            return [env.call("__getattribute__", name) for env in envs]
        return [getattr(_owner(env, name), name) for env in envs]

    def set_attribute(self, row: int, name: str, value: Any) -> None:
        """Set an attribute of a row's env on the layer that has it; adapters and wrappers do not forward assignment."""
        env: Any = self.env_of(row)
        if self._all.workers is not None:
            env.call("__getattribute__", name)  # raises AttributeError if only an inner layer has it
            env.call("__setattr__", name, value)
            return
        layers = _layers(env)
        setattr(next((each for each in layers if name in vars(each)), layers[-1]), name, value)

    def call(self, row: int, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the env of a row."""
        env: Any = self.env_of(row)
        if self._all.workers is not None:
            return env.call(name, *args, **kwargs)
        return getattr(_owner(env, name), name)(*args, **kwargs)

    def render(self) -> list[Any]:
        """Return the rendered frame of each env."""
        return [env.render() for env in self.envs]

    def close(self) -> None:
        """Close all envs; no row can be stepped afterwards."""
        self._is_closed = True
        self._all.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RunnerStoppedError("these envs are closed; create new ones")


def _owner(env: Any, name: str) -> Any:
    """Return the outermost layer of an env that has this attribute; the env itself if none has it."""
    return next((layer for layer in _layers(env) if hasattr(layer, name)), env)


def _layers(env: Any) -> list[Any]:
    """Return an env and the envs it wraps, from the outside in."""
    layers = [env]
    while (inner := getattr(layers[-1], "env", None)) is not None and len(layers) < MOST_LAYERS:
        layers.append(inner)
    return [*layers, getattr(env, "unwrapped", env)]

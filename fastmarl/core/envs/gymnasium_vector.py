"""Adapter from Gymnasium vector envs to the array protocol."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from fastmarl.core.envs.arrays import ArrayEnv, StepArrays, group_by_spaces, write_observations
from fastmarl.core.envs.env_adapter import EnvAdapter
from fastmarl.core.errors import EnvCheckError
from fastmarl.core.errors.checks import plain_seed
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.values import converted


@public("fastmarl.envs")
class VectorGymnasiumEnv(EnvAdapter, ArrayEnv):
    """Adapts a gymnasium.vector.VectorEnv.

    If the observation and action spaces of an env are Tuples of equal length, its agents are 0, 1, ..., one per entry,
    and each receives the team reward. Otherwise agent 0 is the only one. Episodes end for all agents at the same time.
    The info of an env becomes `infos["__common__"]`.

    Args:
        env: The vector env, preferably with the autoreset mode DISABLED, such as `gymnasium.make_vec("CartPole-v1", 64,
            vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED})`. With NEXT_STEP, Gymnasium's
            default, the step after the end of an episode only starts the next one: until then, no agent of that env is
            observed. Such a batch cannot reset single envs while their episodes are still running.

    Raises:
        EnvCheckError: If the autoreset mode is SAME_STEP.
    """

    def __init__(self, env: Any):
        self.env = env
        mode = env.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP):
            raise EnvCheckError(f"expected a vector env with the autoreset mode DISABLED or NEXT_STEP, got {env} with "
                                f"{mode}; create it with autoreset_mode=AutoresetMode.DISABLED")  # fmt: skip
        self._resets_itself = mode is AutoresetMode.NEXT_STEP
        self._takes_lists = isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        self.seeds_each_episode = self._takes_lists and not self._resets_itself
        self._ended = np.zeros(env.num_envs, np.bool_)  # envs whose episode ended in the last step
        observation, action = env.single_observation_space, env.single_action_space
        both = isinstance(observation, gym.spaces.Tuple) and isinstance(action, gym.spaces.Tuple)
        self._is_joint = both and len(observation) == len(action) > 0
        pairs = zip(observation, action, strict=True) if self._is_joint else [(observation, action)]
        spaces: dict[Hashable, tuple[gym.Space, gym.Space]] = dict(enumerate(pairs))
        super().__init__(env.num_envs, *group_by_spaces(spaces))
        position_of = {agent: (name, i) for name, agents in self.groups.items() for i, agent in enumerate(agents)}
        self._positions = [position_of[agent] for agent in spaces]
        self._leaves = [RowLayout(of_agent).leaves for of_agent, _ in spaces.values()]
        self._action_layouts = [RowLayout(of_agent) for _, of_agent in spaces.values()]

    @staticmethod
    def adapts(env: Any) -> bool:
        """Return True if this is a Gymnasium vector env."""
        return isinstance(env, VectorEnv)

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[env_indices] = True
        if self._resets_itself and not mask.all():
            # The next step of the batch resets these envs, whose episodes are over; until then no agent is observed.
            if not self._ended[mask].all():
                raise EnvCheckError("this vector env can reset single envs only when their episodes have just ended; "
                                    "create it with AutoresetMode.DISABLED, or do not drop running "
                                    "episodes")  # fmt: skip
            for group in out.groups.values():
                group.present[mask] = False
            return
        seed: Any = None
        if seeds is not None and self._takes_lists:
            of_all = dict(zip(env_indices.tolist(), map(plain_seed, seeds), strict=True))
            seed = [of_all.get(env_index) for env_index in range(self.num_envs)]
        elif seeds is not None:  # one seed for all envs, since these are their first episodes
            seed = plain_seed(seeds[0])
        observations, infos = self.env.reset(seed=seed, options=None if mask.all() else {"reset_mask": mask})
        self._ended[mask] = False
        self._write_observations(observations, out, env_indices)
        self._add_infos(infos, out)

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        begins = self._ended.copy() if self._resets_itself else np.zeros(self.num_envs, np.bool_)
        observations, rewards, terminated, truncated, infos = self.env.step(self._joint_action(actions))
        self._write_observations(observations, out, np.arange(self.num_envs))
        for name, i in self._positions:
            out.groups[name].rewards[:, i] = rewards
            out.groups[name].present[begins, i] = True
        out.terminated[:] = terminated
        out.truncated[:] = truncated
        self._ended[:] = out.terminated | out.truncated
        self._add_infos(infos, out)

    def _joint_action(self, actions: dict[str, Any]) -> Any:
        by_agent = []
        for (name, i), layout in zip(self._positions, self._action_layouts, strict=True):
            # Copied, since these arrays are reused and some envs and wrappers (StickyAction) keep references to
            # actions.
            columns = [reduce(getitem, leaf.path, actions[name])[:, i].copy() for leaf in layout.leaves]
            by_agent.append(layout.nest(columns))
        return tuple(by_agent) if self._is_joint else by_agent[0]

    def _write_observations(self, observations: Any, out: StepArrays, envs: np.ndarray) -> None:
        for agent, ((name, i), leaves) in enumerate(zip(self._positions, self._leaves, strict=True)):
            of_agent = observations[agent] if self._is_joint else observations
            for leaf in leaves:
                target = reduce(getitem, leaf.path, out.groups[name].obs)
                source = reduce(getitem, leaf.path, of_agent)
                if leaf.dtype == object:
                    for env_index in envs.tolist():
                        target[env_index, i] = source[env_index]
                else:
                    if leaf.any_form:
                        source = converted(np.asarray(source), leaf.dtype, target[:, i].shape)
                    write_observations(target[:, i], source, envs, agent)

    def _add_infos(self, infos: dict[str, Any], out: StepArrays) -> None:
        for env_index in range(self.num_envs) if infos else ():
            if info := _info_of(infos, env_index):
                out.infos.append((env_index, "__common__", info))


def _info_of(columns: dict[str, Any], env_index: int) -> dict[str, Any]:
    """Return the info of an env from Gymnasium's columns; column "_name" masks the envs with a value in "name"."""
    info = {}
    for name, column in columns.items():
        if f"_{name}" in columns and columns[f"_{name}"][env_index]:
            info[name] = _info_of(column, env_index) if isinstance(column, dict) else column[env_index]
    return info

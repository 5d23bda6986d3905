"""One env of a batch, with dicts by agent id."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.errors import RecordingError
from fastmarl.core.native._env_values import private_copy
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces


class SingleOfBatch:
    """Plays the same episode in all envs of a batch (mostly one), and returns the results of the first.

    Args:
        batch: Batch whose `seeds_each_episode` is True.
    """

    def __init__(self, batch: ArrayEnv):
        self.batch = batch
        self.possible_agents = batch.possible_agents
        self._places = {agent: (name, i) for name, agents in batch.groups.items() for i, agent in enumerate(agents)}
        self._obs_layouts = {name: RowLayout(batch.observation_spaces[ids[0]]) for name, ids in batch.groups.items()}
        self._action_layouts = {name: RowLayout(batch.action_spaces[ids[0]]) for name, ids in batch.groups.items()}
        self._live: set[Hashable] = set()

    @property
    def unwrapped(self) -> Any:
        return self.batch.unwrapped

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return self.batch.observation_spaces[agent_id]

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return self.batch.action_spaces[agent_id]

    def reset(self, *, seed: int | None = None) -> tuple[dict, dict]:
        out, n = self.batch.new_arrays(), self.batch.num_envs
        self.batch.reset(np.arange(n), out, seeds=None if seed is None else [seed] * n)
        obs = self._observations(out)
        self._live = set(obs)
        return obs, self._infos(out)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        out = self.batch.new_arrays()
        for name, group in out.groups.items():
            group.present[...] = [agent in self._live for agent in self.batch.groups[name]]
        self.batch.step(self._arrays_of(actions), out)
        obs, rewards = self._observations(out), {}
        terminateds: dict[Any, bool] = {"__all__": bool(out.terminated[0])}
        truncateds: dict[Any, bool] = {"__all__": bool(out.truncated[0])}
        for agent, (name, i) in self._places.items():
            group, is_live = out.groups[name], agent in self._live
            if is_live or group.rewards[0, i]:
                rewards[agent] = float(group.rewards[0, i])
            if is_live or agent in obs:
                terminateds[agent], truncateds[agent] = bool(group.terminated[0, i]), bool(group.truncated[0, i])
        ended = {agent for agent in self._places if terminateds.get(agent) or truncateds.get(agent)}
        self._live = (self._live | set(obs)) - ended
        return obs, rewards, terminateds, truncateds, self._infos(out)

    def render(self) -> Any:
        return self.batch.render()

    def close(self) -> None:
        self.batch.close()

    def _arrays_of(self, actions: dict) -> dict[str, Any]:
        arrays = {}
        for name, agents in self.batch.groups.items():
            layout, shape = self._action_layouts[name], (self.batch.num_envs, len(agents))
            leaves = [np.zeros((*shape, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
            spaces = leaf_spaces(layout.space)
            for agent in agents:
                if agent in actions:
                    for leaf, value, space in zip(leaves, layout.leaves_of(actions[agent]), spaces, strict=True):
                        _check_choices(agent, np.asarray(value, leaf.dtype), space)
                        leaf[:, self._places[agent][1]] = value
            arrays[name] = layout.nest(leaves)
        return arrays

    def _observations(self, out: StepArrays) -> dict:
        obs = {}
        for agent, (name, i) in self._places.items():
            group, layout = out.groups[name], self._obs_layouts[name]
            if group.present[0, i]:
                obs[agent] = layout.nest([leaf[0, i].copy() for leaf in layout.leaves_of(group.obs)])
        return obs

    def _infos(self, out: StepArrays) -> dict:
        return {agent: private_copy(info, 0, agent, 0) for env_index, agent, info in out.infos if env_index == 0}


def _check_choices(agent: Hashable, action: np.ndarray, space: gym.Space) -> None:
    """Raise RecordingError for numbers outside the space, which compiled envs might use as indices."""
    if not isinstance(space, gym.spaces.Box) and not space.contains(action):
        raise RecordingError(f"agent {agent!r} has the recorded action {action}, which is not in {space}; was the "
                             f"env changed, or another env_config given?")  # fmt: skip

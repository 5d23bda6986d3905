"""Lets a shared network distinguish the agents that it acts for."""

from collections.abc import Hashable, Sequence, Set
from copy import deepcopy
from typing import Any, Self

import gymnasium as gym
import numpy as np

from fastmarl.core.checkpoint.folder import stored_key
from fastmarl.core.connectors.base import EnvToModuleConnector, Rows
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.checks import in_order
from fastmarl.core.objects.public import public


@public("fastmarl.connectors")
class AgentIndicator(EnvToModuleConnector):
    """Appends the one-hot index of the agent to its observations, so that agents sharing a network can act differently.

    Observations must be vectors; put FlattenObservations before this connector for other shapes. The output is float32.

    Args:
        agents: All agents of the module, in one-hot order: the i-th agent has its 1 at index i. A set is sorted.
    """

    per_agent_state = ("position_L",)

    def __init__(self, agents: Sequence[Hashable] | Set[Hashable]):
        if isinstance(agents, set | frozenset):
            agents = in_order("the agents of AgentIndicator", agents)
        if isinstance(agents, str) or not isinstance(agents, Sequence) or not agents:
            raise ConfigError(f"AgentIndicator needs a non-empty list of agent ids, got {agents!r}")
        if len(set(agents)) < len(agents):
            raise ConfigError(f"AgentIndicator needs unique agent ids, got {agents!r}")
        self.agents = list(agents)
        self._positions = {agent: position for position, agent in enumerate(agents)}
        self._one_hot = np.eye(len(agents), dtype=np.float32)
        self.position_L = np.zeros(0, np.int64)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy everything except the ids, which may be hashed by identity."""
        memo.update({id(agent): agent for agent in self.agents})
        other = object.__new__(type(self))
        other.__dict__.update(deepcopy(vars(self), memo))
        return other

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        space = input_observation_space
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise ConfigError(f"AgentIndicator needs vector observations, got {space}; put "
                              f"FlattenObservations before it")  # fmt: skip
        zeros, ones = np.zeros(len(self.agents), np.float32), np.ones(len(self.agents), np.float32)
        low, high = np.concatenate([space.low, zeros]), np.concatenate([space.high, ones])
        return gym.spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)

    def __call__(self, obs: Any, rows: Rows) -> np.ndarray:
        if rows.n_lanes > len(self.position_L):
            self.position_L = np.pad(self.position_L, (0, rows.n_lanes - len(self.position_L)))
        if len(firsts := rows.is_first.nonzero()[0]):
            self._note(rows, firsts)
        indicators = self._one_hot.take(self.position_L.take(rows.lanes), axis=0)
        return np.concatenate([obs.astype(np.float32, copy=False), indicators], axis=1)

    def _note(self, rows: Rows, numbers: np.ndarray) -> None:
        """Store the one-hot positions of the agents in these rows."""
        agents = rows.agents
        for i in numbers.tolist():
            agent = agents[i][1]
            position = self._positions.get(agent)
            if position is None:  # restored from a checkpoint, which may store the id as a string
                position = self._positions.get(stored_key(agent))
            if position is None:
                raise rows.error(i, f"AgentIndicator was created for agents {self.agents}; pass all agents of the "
                                 f"module")  # fmt: skip
            self.position_L[rows.lanes[i]] = position

"""Spaces of agents, stored when agents join, because the env may later not provide them or return different ones."""

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import gymnasium as gym

from fastmarl.core.errors import MultiAgentEnvError
from fastmarl.core.store.lanes import LaneTable

Spaces = tuple[gym.Space[Any], gym.Space[Any]]  # (observation space, action space)
MOST_AGENTS = 4096  # per env; beyond this number, e.g. in open worlds, agents without a lane are forgotten


class AgentSpaces:
    """Fills `table.spaces` with the spaces of all agents that have a lane.

    The list is never modified and its dicts only grow; dropping agents replaces both. A reference to an old list
    therefore still holds the spaces of all agents that had a lane before the replacement.

    Args:
        table: The lane table.
        spaces_of: (env index, agent id) -> spaces; queries the env.
    """

    def __init__(self, table: LaneTable, spaces_of: Callable[[int, Hashable], Spaces]):
        self._table: LaneTable = weakref.proxy(table)  # the table refers back to this object
        self._spaces_of = spaces_of
        table.on_new_agent = self._note

    def share(self, env_indices: Iterable[int], spaces: Mapping[Hashable, Spaces]) -> None:
        """Store the spaces of all agents in a batch of identical envs, before any agent joins."""
        of_batch, own = dict(spaces), set(env_indices)
        self._table.spaces = [of_batch if i in own else of_env for i, of_env in enumerate(self._table.spaces)]

    def _note(self, env_index: int, agent_id: Hashable) -> None:
        if agent_id is None:  # without possible_agents, ids cannot be checked earlier
            env_t = self._table.envs[env_index].env_t
            problem = "expected agent ids as keys of observations, got None, which means 'no agent' in batches"
            raise MultiAgentEnvError(env_index, None, env_t, f"{problem}; use another id")
        spaces = self._spaces_of(env_index, agent_id)
        of_env = self._table.spaces[env_index]
        if len(of_env) >= MOST_AGENTS:
            with_lanes = zip(self._table.agent_ids, self._table.env_L.tolist(), strict=True)
            kept = {agent for agent, i in with_lanes if i == env_index}
            of_env = {agent: known for agent, known in of_env.items() if agent in kept}
            self._table.spaces = [of_env if i == env_index else same for i, same in enumerate(self._table.spaces)]
        of_env[agent_id] = spaces

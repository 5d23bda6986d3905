"""Builds running episodes as in the RLlib loop, for mapping functions, callbacks, and that loop itself."""

from collections.abc import Hashable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from fastmarl.rllib.episodes.lists import ListedColumn, items_of
from fastmarl.rllib.store.block import PYTHON_FLOAT
from fastmarl.rllib.store.builder import Builder, RLlibChunk
from fastmarl.rllib.store.lane_steps import rewards_of
from fastmarl.rllib.store.mixed_outputs import mixed_items, mixed_steps
from fastmarl.rllib.store.records import RLlibRecord
from fastmarl.rllib.store.store import RLlibStore


class RunningEpisodes:
    """Builds running episodes from the recorded rows.

    Args:
        store: The store of all rows.
        builder: Builds chunks from the store.
        spaces, episode_class: See Builder.

    Attributes:
        store, spaces: The arguments `store` and `spaces`.
        passing: Lane -> latest observation, while a connector piece processes it.
    """

    def __init__(self, store: RLlibStore, builder: Builder, spaces: list[tuple[dict, dict]], episode_class: type):
        self.store = store
        self.spaces = spaces
        self.passing: dict[int, Any] = {}
        self._builder = builder
        self._episode_class = episode_class
        self._given: dict[int, Any] = {}  # env index -> observation spaces set by a connector in an episode

    def empty(self, record: RLlibRecord, mapping_fn: Any) -> Any:
        """Create an episode without observations."""
        observation_space, action_space = self.spaces[record.env_index]
        return self._episode_class(
            record.id_,
            observation_space=observation_space,
            action_space=action_space,
            agent_to_module_mapping_fn=mapping_fn,
        )

    def chunk_of(self, record: RLlibRecord) -> RLlibChunk:
        """Return the current chunk of a running episode."""
        env = self.store.table.envs[record.env_index]
        return RLlibChunk(record, env.env_t, env.infos, is_running=True)

    def built(self, chunk: RLlibChunk, mapping_fn: Any, arrays: list[ListedColumn] | None = None) -> Any:
        """Build an episode chunk with lists, as in the RLlib loop. Agents that have just acted count as waiting.

        Args:
            chunk: The chunk in its current state.
            mapping_fn: Mapping function of the episode.
            arrays: List that receives the columns whose arrays can be restored without stacking.
        """
        record = chunk.record
        self._builder.find_hanging()
        self.store.stamp_all()
        (episode,) = self._builder.build([chunk])
        episode.agent_to_module_mapping_fn = mapping_fn
        episode._custom_data = record.custom_data
        are_plain = [not (block.kind_R[: block.rows.n] > PYTHON_FLOAT).any() for block in self.store.blocks]
        for agent_id, lane in record.lane_of.items():
            is_plain = are_plain[self.store.table.module_L[lane]]
            if agent_id in episode.agent_episodes:  # not if it has no step and its episode has finished
                self._turn_into_lists(episode.agent_episodes[agent_id], lane, arrays, is_plain)
        if record.ended_agent_episodes:
            _put_back(deepcopy(record.ended_agent_episodes), episode, record)
        return episode

    def _turn_into_lists(
        self, agent_episode: Any, lane: int, arrays: list[ListedColumn] | None, is_plain: bool
    ) -> None:
        """Convert agent data to lists of the recorded items; `is_plain` means that rewards are Python floats."""
        table = self.store.table
        block = self.store.blocks[table.module_L[lane]]
        observations, rewards = agent_episode.observations, agent_episode.rewards
        items = self._observations_of(lane, observations.data)
        # If an agent ends unobserved, its last observation from the env is repeated.
        newest = int(table.row_L[lane]), int(table.final_L[lane])
        raw = items[-1] if block.raw_layout is None else block.raw_newest(*newest)
        is_raw = block.awaits_connectors(*newest)
        if is_raw:
            items[-1] = raw
        agent_episode._last_added_observation = raw
        _list_column(observations, items, None if block.layout.has_objects or is_raw else arrays)
        if len(rewards.data):
            if is_plain:
                _list_column(rewards, rewards.data.tolist(), arrays)
            else:
                _list_column(rewards, rewards_of(self.store, lane), None)
            self._list_outputs(agent_episode, lane, arrays)
        else:
            for buffer in (agent_episode.actions, rewards):
                buffer.data, buffer.finalized = [], False
            agent_episode.extra_model_outputs = {}

    def _observations_of(self, lane: int, gathered: Any) -> list[Any]:
        """Return the stored observations of an agent as a list."""
        table, rows = self.store.table, self.store.rows_of(lane)
        block, final = self.store.blocks[table.module_L[lane]], table.final_L[lane]
        layout = block.layout
        if layout.has_objects:
            items = list(block.obs[0][rows])
            if final >= 0:
                items.append(block.final_obs[0][final])
        else:
            items = layout.items(gathered)
        return items

    def _list_outputs(self, agent_episode: Any, lane: int, arrays: list[ListedColumn] | None) -> None:
        """Convert actions and other outputs of an agent to lists of items."""
        block = self.store.blocks[self.store.table.module_L[lane]]
        buffers = {"actions": agent_episode.actions, **agent_episode.extra_model_outputs}
        n = len(agent_episode.rewards.data)
        if block.former and (
            acted := mixed_steps(block, self.store.rows_of(lane)[: n + (lane in self._builder.hanging)])
        ):
            actions, extras = mixed_items(acted[:n])
            for name, items in {"actions": actions, **extras}.items():
                _list_column(buffers[name], items, None)
        else:
            for name, buffer in buffers.items():
                _list_column(buffer, items_of(buffer.data, block.type_of_scalars(name)), arrays)

    def outline(self, record: RLlibRecord, env_t_started: int, env_t: int) -> Any:
        """Create an episode with only the attributes that do not depend on its steps; `_origin` provides the rest."""
        episode: Any = object.__new__(self._episode_class)
        episode.id_, episode.env_t_started, episode.env_t = record.id_, env_t_started, env_t
        episode.observation_space, episode.action_space = self.spaces[record.env_index]
        episode.agent_to_module_mapping_fn = record.policy_mapping_fn
        episode._agent_to_module_mapping = record.mapping
        episode._custom_data = record.custom_data
        return episode

    def gives_same(self, env_index: int, spaces: Any) -> bool:
        """Return True if these observation spaces, set by a connector, equal the spaces of the env."""
        if self._given.get(env_index) is not spaces:
            observation_spaces, _ = self.spaces[env_index]
            if not isinstance(spaces, Mapping) or dict(spaces) != observation_spaces:
                return False
            self._given[env_index] = spaces
        return True


def _list_column(buffer: Any, items: list[Any], arrays: list[ListedColumn] | None) -> None:
    """Put items into an RLlib buffer, and record its array in `arrays`."""
    if arrays is not None and isinstance(buffer.data, np.ndarray):
        arrays.append(ListedColumn(buffer, buffer.data, tuple(items)))
    buffer.data, buffer.finalized = items, False


def _put_back(ended: dict[Hashable, tuple[Any, Any]], episode: Any, record: RLlibRecord) -> None:
    """Add agents that ended before the chunk to the episode, as in RLlib."""
    agent_episodes = episode.agent_episodes | {agent_id: each for agent_id, (each, _) in ended.items()}
    episode.agent_episodes = {agent_id: agent_episodes[agent_id] for agent_id in record.order}
    for agent_id, (_, times) in ended.items():
        times.data += [episode.SKIP_ENV_TS_TAG] * len(episode)
        episode.env_t_to_agent_t[agent_id] = times
    maps = episode.env_t_to_agent_t
    for agent_id in [*record.map_order, *(a for a in list(maps) if a not in record.map_order)]:
        maps[agent_id] = maps.pop(agent_id)

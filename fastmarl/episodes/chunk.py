"""The agents' parts of a chunk, made when they are first asked for: most agents are never looked at one by one."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from typing import Any
from weakref import ref

import numpy as np

from fastmarl.episodes.own_columns import LaneSource
from fastmarl.episodes.single_agent import SingleAgentEpisode
from fastmarl.native._scatter import waiting_places
from fastmarl.record.agent_spaces import Spaces
from fastmarl.record.block import Block, BlockSource
from fastmarl.record.flags import TERMINATED, TRUNCATED

ROW, COUNT, MODULE = 0, 1, 7  # columns of Scatter.lanes_now()


class ChunkParts:
    """Where the rows of one chunk's lanes are; called, it makes the agents' parts.

    Args:
        agent_ids, lanes: in order of appearance.
        columns: of these lanes, see `Scatter.lanes_now()`.
        blocks, module_ids: by module index.
        episode_id: of the chunk.
        spaces: by agent id (observation space, action space).
        infos: lane -> env step -> info.
    """

    __slots__ = (
        "_blocks", "_columns", "_episode_id", "_infos", "_lanes", "_module_ids", "_spaces", "agent_ids"
    )  # fmt: skip

    def __init__(
        self,
        *,
        agent_ids: tuple[Hashable, ...],
        lanes: tuple[int, ...],
        columns: np.ndarray,
        blocks: tuple[Block, ...],
        module_ids: Sequence[str],
        episode_id: str,
        spaces: Mapping[Hashable, Spaces],
        infos: dict[int, dict[int, dict[str, Any]]],
    ):
        self.agent_ids = agent_ids
        self._lanes = lanes
        self._columns = columns
        self._blocks: Sequence[Block] | Mapping[int, Block] = blocks
        self._module_ids = module_ids
        self._episode_id = episode_id
        self._spaces = spaces
        self._infos = infos

    def of_modules(self, wanted: Callable[[str], bool]) -> "ChunkParts":
        """Those of agents of certain modules; the memory of other modules is not held."""
        by_place = self._columns[:, MODULE].tolist()
        modules = {module for module in set(by_place) if wanted(self._module_ids[module])}
        places = [place for place, module in enumerate(by_place) if module in modules]
        some = copy(self)
        some.agent_ids = tuple(self.agent_ids[place] for place in places)
        some._lanes = tuple(self._lanes[place] for place in places)
        some._columns = self._columns[places]
        some._blocks = {module: self._blocks[module] for module in modules}
        return some

    def hanging_rewards(self, acting_from: list[int]) -> dict[Hashable, float]:
        """What agents that have acted and wait for an observation have been paid since."""
        paid = {}
        for place in waiting_places(self._columns, acting_from):
            row, module = self._columns[place, ROW], self._columns[place, MODULE]
            paid[self.agent_ids[place]] = self._blocks[module].reward(row)
        return paid

    def waiting_infos(self) -> dict[Hashable, dict[int, dict[str, Any]]]:
        """Agent id -> env step -> info, of steps in which the agent waited for an observation."""
        found = {}
        for agent_id, lane, columns in zip(self.agent_ids, self._lanes, self._columns.tolist(), strict=True):
            row, count, _, _, final, end_env_t, _, module = columns
            if lane in self._infos:
                source = BlockSource(self._blocks[module], row, count, final, end_env_t, self._infos[lane])
                if infos := source.waiting_infos():
                    found[agent_id] = infos
        return found

    def n_rows(self) -> int:
        """Rows of all lanes."""
        return int(self._columns[:, COUNT].sum())

    def __call__(self) -> dict[Hashable, SingleAgentEpisode]:
        """Agent id -> its part, of those with at least one completed step in the chunk."""
        parts: dict[Hashable, SingleAgentEpisode] = {}
        for agent_id, lane, columns in zip(self.agent_ids, self._lanes, self._columns.tolist(), strict=True):
            row, count, lookback, t_started, final, end_env_t, done, module = columns
            if count + (final >= 0) - 1 <= lookback:
                continue
            observation_space, action_space = self._spaces[agent_id]
            if self._blocks[module].raw_layout is not None:
                observation_space = self._blocks[module].layout.space
            infos = self._infos.get(lane, {})
            parts[agent_id] = SingleAgentEpisode(
                agent_id=agent_id,
                module_id=self._module_ids[module],
                id_=None,
                multi_agent_episode_id=self._episode_id,
                observation_space=observation_space,
                action_space=action_space,
                source=LaneSource(self._blocks[module], row, count, final, end_env_t, infos),
                lookback=lookback,
                t_started=t_started,
                is_terminated=bool(done & TERMINATED),
                is_truncated=bool(done & TRUNCATED),
            )
            self._blocks[module].readers.append(ref(parts[agent_id]))
        return parts

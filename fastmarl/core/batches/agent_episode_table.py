"""Numeric table of the agent episodes in many chunks, filled without building them.

Axes in names: E chunk, S agent episode.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import chain
from typing import Self

import numpy as np

from fastmarl.core.episodes.chunk import Unbuilt, without_steps
from fastmarl.core.episodes.lane_source import LaneSource
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import Source
from fastmarl.core.native import _steps
from fastmarl.core.native._chunks import lanes_with_steps
from fastmarl.core.store.block import Block
from fastmarl.core.store.lanes import TERMINATED, TRUNCATED

# Columns of the table; the first eight are the columns of `Scatter.lanes_now()`.
ROW, COUNT, LOOKBACK, T_STARTED, FINAL, END_ENV_T, DONE, MODULE, SOURCE, CHUNK = range(10)
NOTHING = -1


class AgentEpisodeTable:
    """Table of agent episodes, ordered by chunk and, within each chunk, by first appearance of the agent.

    Args:
        chunks: Chunks as returned by `in_numbers()`.
        with_waiting: Include agents that acted on their first observation and are still waiting for the next one;
            these have no steps.

    Attributes:
        agent_ids, episode_ids: Lists, indexed by S.
        own_ids: List of agent episode ids, indexed by S; None where the id is derived from the other two ids.
        numbers: int64 [S, 10]. MODULE, SOURCE and CHUNK are indices; MODULE is NOTHING until `modules()` resolves it.
            For agent episodes outside of blocks, COUNT is the number of observations, and ROW, FINAL and END_ENV_T are
            NOTHING.
        length_S: Number of steps after the lookback, int64; 0 for waiting agents, and for episodes built by hand
            without steps.
        sources: Objects that contain the columns, indexed by SOURCE; each block occurs once.
        others: Indices of all other agent episodes, except for waiting agents without steps.
    """

    def __init__(self, chunks: Iterable[Unbuilt | MultiAgentEpisode], *, with_waiting: bool = False):
        self.agent_ids: list[Hashable] = []
        self.episode_ids: list[str | None] = []
        self.own_ids: list[str | None] = []
        self.sources: list[Block | Source] = []
        self.others: list[int] = []
        self._source_of_block: dict[int, int] = {}  # keyed by id()
        self._index_of_module: dict[str, int] = {}
        self._built: dict[int, MultiAgentEpisode] = {}  # keyed by E
        numbers: list[np.ndarray] = []
        rows: list[tuple[int, ...]] = []
        n = 0
        for each in chunks:
            begin = len(self.agent_ids)
            if isinstance(each, Unbuilt):
                numbers += [_array(rows), self._unbuilt(each, n)]
                self.others += range(begin, len(self.agent_ids))
                numbers += [self._waiting(each, n)] if with_waiting else []
                rows = []
                n += len(each.ids)
            else:
                self._built[n] = each
                rows += self._rows(each.agent_episodes.values(), n)
                self.others += range(begin, len(self.agent_ids))
                for agent_episode in waiting_in(each) if with_waiting else ():
                    (row,) = self._rows([agent_episode], n)
                    rows.append((*row[:MODULE], self._module(str(agent_episode.module_id)), *row[MODULE + 1 :]))
                n += 1
        self.numbers = _steps.joined([*numbers, _array(rows)])
        self.length_S = _steps.lengths(self.numbers)

    @classmethod
    def of(cls, agent_episodes: Iterable[SingleAgentEpisode]) -> Self:
        """Build a table of these agent episodes; their modules remain unknown."""
        table = cls([])
        table.numbers = _array(table._rows(agent_episodes, NOTHING))
        table.length_S = _steps.lengths(table.numbers)
        return table

    @property
    def module_ids(self) -> list[str]:
        """Module ids, indexed by module index."""
        return list(self._index_of_module)

    def modules(self, chosen: np.ndarray) -> np.ndarray:
        """Return the module indices of these agent episodes, int64 [s], looking up unknown ones in the chunks."""
        unknown = chosen[self.numbers[chosen, MODULE] == NOTHING]
        self.numbers[unknown, MODULE] = [
            self._module(self._built[chunk].module_for(self.agent_ids[s]))
            for s, chunk in zip(unknown.tolist(), self.numbers[unknown, CHUNK].tolist(), strict=True)
        ]
        return self.numbers[chosen, MODULE]

    def by_module(self) -> dict[str, np.ndarray]:
        """Return module id -> indices of its agent episodes with steps, int64 [s]; modules in order of appearance."""
        if self._built:
            self.modules(np.flatnonzero(self.length_S))
        module_ids = self.module_ids
        by_module = _steps.with_steps(self.numbers[:, MODULE], self.length_S)
        return {module_ids[module]: chosen for module, chosen in by_module.items()}

    def _unbuilt(self, chunks: Unbuilt, first_chunk: int) -> np.ndarray:
        """Return the numeric rows of the agent episodes in these chunks, and register their ids."""

        def number_of(module: int) -> tuple[int, int]:
            return self._module(chunks.module_ids[module]), self._source(chunks.blocks[module])

        numbers, agent_ids, episode_ids = lanes_with_steps(
            chunks.columns, chunks.n_lanes, chunks.agent_ids, chunks.ids, first_chunk, number_of
        )
        self.agent_ids += agent_ids
        self.episode_ids += episode_ids
        self.own_ids += [None] * len(agent_ids)
        return numbers

    def _waiting(self, chunks: Unbuilt, first_chunk: int) -> np.ndarray:
        """Return the numeric rows of waiting agents without steps in these chunks, and register their ids."""
        columns = chunks.columns
        waits = without_steps(columns)
        chunk = np.repeat(np.arange(len(chunks.ids)), chunks.n_lanes)[waits]
        numbers = np.empty((len(waits), 10), np.int64)
        numbers[:, :MODULE], numbers[:, CHUNK] = columns[waits, :MODULE], first_chunk + chunk
        for i, (lane, index) in enumerate(zip(waits.tolist(), chunk.tolist(), strict=True)):
            module = int(columns[lane, MODULE])
            numbers[i, MODULE] = self._module(chunks.module_ids[module])
            numbers[i, SOURCE] = self._source(chunks.blocks[module])
            self.agent_ids.append(chunks.agent_ids[lane])
            self.episode_ids.append(chunks.ids[index])
            self.own_ids.append(None)
        return numbers

    def _rows(self, agent_episodes: Iterable[SingleAgentEpisode], chunk: int) -> list[tuple[int, ...]]:
        """Return the numeric rows of these agent episodes of a chunk, and register their ids."""
        rows: list[tuple[int, ...]] = []
        for agent_episode in agent_episodes:
            self.agent_ids.append(agent_episode.agent_id)
            self.episode_ids.append(agent_episode.multi_agent_episode_id)
            self.own_ids.append(agent_episode.id_)
            source = agent_episode.source
            lane_rows = source.lane_rows() if isinstance(source, LaneSource) else None
            if lane_rows is None:
                index, row, count, final, end_env_t = len(self.sources), NOTHING, source.n_obs, NOTHING, NOTHING
                self.sources.append(source)
            else:
                block, row, count, final, end_env_t = lane_rows
                index = self._source(block)
            done = TERMINATED * bool(agent_episode.is_terminated) | TRUNCATED * bool(agent_episode.is_truncated)
            lookback, t_started = agent_episode.lookback, agent_episode.t_started
            rows.append((row, count, lookback, t_started, final, end_env_t, done, NOTHING, index, chunk))
        return rows

    def _module(self, module_id: str) -> int:
        return self._index_of_module.setdefault(module_id, len(self._index_of_module))

    def _source(self, block: Block) -> int:
        index = self._source_of_block.setdefault(id(block), len(self.sources))
        if index == len(self.sources):
            self.sources.append(block)
        return index


def waiting_in(episode: MultiAgentEpisode) -> list[SingleAgentEpisode]:
    """Return the episodes of waiting agents without steps in a built chunk."""
    return [each for each in episode.without_steps() if each.agent_id not in episode.agent_episodes]


def _array(rows: list[tuple[int, ...]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(rows), np.int64, 10 * len(rows)).reshape(-1, 10)

"""Lazy episodes: stored as integers, built on first access."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from fastmarl.episodes.chunk import COUNT, Chunk, ChunkLanes
from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.native._chunks import ChunkNotes
from fastmarl.native._garbage import without_collection
from fastmarl.native._records import ids_of
from fastmarl.native._scatter import Scatter
from fastmarl.record.agent_spaces import Spaces
from fastmarl.record.block import Block
from fastmarl.record.flags import TERMINATED, TRUNCATED

Own = tuple[
    Sequence[tuple[int, int, dict[str, Any]]], dict[str, Any], np.ndarray | None
]  # infos, custom data, env states


class UnreadChunks(ChunkNotes):
    """The chunks of one call of `sample()`.

    They are noted when they are over, and can be read once `seal()` has been called, for ever.
    """

    def take(self) -> list[MultiAgentEpisode]:
        """The chunks noted since the last time; each is read when somebody asks for anything in it."""
        return without_collection(self.take_as, MultiAgentEpisode)

    def seal(
        self,
        scatter: Scatter,
        agent_ids: list[Hashable],
        spaces: list[dict[Hashable, Spaces]],
        blocks: tuple[Block, ...],
        module_ids: Sequence[str],
        acting_from: list[int],
    ) -> None:
        """Note where the rows are of all lanes of all chunks, as of now.

        Args:
            agent_ids: by lane.
            spaces: per env, of all of its agents that have lanes.
            blocks, module_ids, acting_from: by module index.
        """
        self._columns = scatter.lanes_now(self.lanes)
        self._agent_ids, self._spaces = ids_of(self.lanes, agent_ids), spaces
        self._blocks, self._module_ids, self._acting_from = blocks, module_ids, list(acting_from)

    def n_rows(self, place: int) -> int:
        """Rows of all lanes of the chunk at this place."""
        return int(self._columns[self._lanes_of(place), COUNT].sum())

    def _lanes_of(self, place: int) -> slice:
        return slice(int(self.numbers[place - 1, -1]) if place else 0, int(self.numbers[place, -1]))

    def read(self, place: int, own: Own | None) -> Chunk:
        """The chunk at this place, of which its episode holds `own` itself."""
        own_infos, custom_data, env_states = own or ((), {}, None)
        env_index, env_t_started, env_t, lookback, flags, reset_seed, _ = self.numbers[place].tolist()
        at = self._lanes_of(place)
        infos: dict[int, dict[int, dict[str, Any]]] = {}
        for t, lane, info in own_infos:
            infos.setdefault(lane, {})[t] = info
        lanes = ChunkLanes(
            agent_ids=self._agent_ids[at],
            lanes=tuple(self.lanes[at]),
            columns=self._columns[at].copy(),
            blocks=self._blocks,
            module_ids=self._module_ids,
            episode_id=self.ids[place],
            spaces=self._spaces[env_index],
            infos=infos,
        )
        return Chunk(
            id_=self.ids[place],
            env_t_started=env_t_started,
            env_t=env_t,
            lookback=lookback,
            is_terminated=bool(flags & TERMINATED),
            is_truncated=bool(flags & TRUNCATED),
            common_infos=infos.get(-1, {}),
            waiting_infos=lanes.waiting_infos if infos else None,
            hanging_rewards={} if flags else lanes.hanging_rewards(self._acting_from),
            custom_data=custom_data,
            agent_ids=lanes.agent_ids,
            env_states=env_states,
            duration_s=self.durations_s[place],
            reset_seed=None if reset_seed < 0 else reset_seed,
            lanes=lanes,
        )

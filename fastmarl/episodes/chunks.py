"""Lazy episodes: stored as integers, built on first access."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from fastmarl.episodes.chunk import COUNT, ChunkParts
from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.locks import ProcessLock
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


class UnreadEpisode(MultiAgentEpisode):
    """Turns into a MultiAgentEpisode when it is first asked, or told, anything."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        _read(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _read(self)
        setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        _read(self)
        delattr(self, name)


_reading = ProcessLock()


def _read(episode: UnreadEpisode) -> None:
    _reading.run(_turn, episode)


def _turn(episode: UnreadEpisode) -> None:
    """Into what it stands for, if no other thread has done that."""
    if type(episode) is not UnreadEpisode:
        return
    chunks, place, own = (object.__getattribute__(episode, name) for name in ("_chunks", "_place", "_own"))
    read = MultiAgentEpisode(**chunks.arguments(place, own))
    for slot in MultiAgentEpisode.__slots__:
        object.__setattr__(episode, slot, getattr(read, slot))
    object.__setattr__(episode, "__class__", MultiAgentEpisode)
    del episode._chunks, episode._own


def n_unmade_rows(episode: MultiAgentEpisode) -> int:
    """Rows of the agents, if their parts have not been made yet; the episode is not read by that."""
    return _reading.run(_n_unmade_rows, episode)


def _n_unmade_rows(episode: MultiAgentEpisode) -> int:
    if type(episode) is UnreadEpisode:
        chunks, place = (object.__getattribute__(episode, name) for name in ("_chunks", "_place"))
        n_rows: int = chunks.n_rows(place)
        return n_rows
    parts = episode._make_parts
    return parts.n_rows() if isinstance(parts, ChunkParts) and episode._agent_episodes is None else 0


class UnreadChunks(ChunkNotes):
    """The chunks of one call of `sample()`.

    They are noted when they are over, and can be read once `seal()` has been called, for ever.
    """

    def take(self) -> list[MultiAgentEpisode]:
        """The chunks noted since the last time; each is read when somebody asks for anything in it."""
        return without_collection(self.take_as, UnreadEpisode)

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

    def arguments(self, place: int, own: Own | None) -> dict[str, Any]:
        """What the MultiAgentEpisode at this place is made with, of which it holds `own` itself."""
        own_infos, custom_data, env_states = own or ((), None, None)
        env_index, env_t_started, env_t, lookback, flags, reset_seed, _ = self.numbers[place].tolist()
        lanes = self._lanes_of(place)
        infos: dict[int, dict[int, dict[str, Any]]] = {}
        for at, lane, info in own_infos:
            infos.setdefault(lane, {})[at] = info
        parts = ChunkParts(
            agent_ids=self._agent_ids[lanes],
            lanes=tuple(self.lanes[lanes]),
            columns=self._columns[lanes].copy(),
            blocks=self._blocks,
            module_ids=self._module_ids,
            episode_id=self.ids[place],
            spaces=self._spaces[env_index],
            infos=infos,
        )
        return {
            "id_": self.ids[place],
            "agent_episodes": parts,
            "env_t_started": env_t_started,
            "env_t": env_t,
            "lookback": lookback,
            "is_terminated": bool(flags & TERMINATED),
            "is_truncated": bool(flags & TRUNCATED),
            "common_infos": infos.get(-1),
            "waiting_infos": parts.waiting_infos if infos else None,
            "hanging_rewards": None if flags else parts.hanging_rewards(self._acting_from),
            "custom_data": custom_data,
            "agent_ids": parts.agent_ids,
            "env_states": env_states,
            "duration_s": self.durations_s[place],
            "reset_seed": None if reset_seed < 0 else reset_seed,
        }

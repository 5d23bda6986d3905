"""Chunks that nobody has looked at yet: a few numbers each, of which an episode is made when somebody does."""

from collections.abc import Callable, Hashable, Sequence
from threading import RLock
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl._chunks import ChunkNotes
from fastmarl._records import ids_of
from fastmarl._scatter import Scatter
from fastmarl.block import Block
from fastmarl.chunk import TERMINATED, TRUNCATED, ChunkParts
from fastmarl.episodes import MultiAgentEpisode
from fastmarl.garbage import no_collection


class UnreadEpisode(MultiAgentEpisode):
    """Turns into a MultiAgentEpisode when it is first asked, or told, anything."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        _read(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _read(self)
        setattr(self, name, value)


_reading = RLock()


def _read(episode: UnreadEpisode) -> None:
    with _reading:
        if type(episode) is not UnreadEpisode:
            return  # another thread has read it
        chunks, place = (object.__getattribute__(episode, name) for name in ("_chunks", "_place"))
        read = MultiAgentEpisode(**chunks.arguments(place))
        for slot in MultiAgentEpisode.__slots__:
            object.__setattr__(episode, slot, getattr(read, slot))
        object.__setattr__(episode, "__class__", MultiAgentEpisode)
    del episode._chunks


class UnreadChunks(ChunkNotes):
    """The chunks of one call of `sample()`.

    They are noted when they are over, and can be read once `seal()` has been called, for ever.

    Args:
        spaces_of: (env index, agent id) -> (observation space, action space).

    Attributes:
        env_states: place of a chunk -> the env's global states in it, [n, ...].
    """

    def __init__(self, spaces_of: Callable[[int, Hashable], tuple[gym.Space, gym.Space]]):
        super().__init__()
        self._spaces_of = spaces_of
        self.env_states: dict[int, np.ndarray] = {}

    def take(self) -> list[MultiAgentEpisode]:
        """The chunks noted since the last time; each is read when somebody asks for anything in it."""
        with no_collection():
            return self.take_as(UnreadEpisode)

    def seal(
        self,
        scatter: Scatter,
        agent_ids: list[Hashable],
        blocks: tuple[Block, ...],
        module_ids: Sequence[str],
        acting_from: list[int],
    ) -> None:
        """Note where the rows are of all lanes of all chunks, as of now.

        Args:
            agent_ids: by lane.
            blocks, module_ids, acting_from: by module index.
        """
        self._columns = scatter.lanes_now(self.lanes)
        self._agent_ids = ids_of(self.lanes, agent_ids)
        self._blocks, self._module_ids, self._acting_from = blocks, module_ids, list(acting_from)

    def arguments(self, place: int) -> dict[str, Any]:
        """What the MultiAgentEpisode at this place is made with."""
        env_index, env_t_started, env_t, lookback, flags, end = self.numbers[place].tolist()
        lanes = slice(self.numbers[place - 1, -1] if place else 0, end)
        infos: dict[int, dict[int, dict]] = {}
        for at, lane, info in self.infos[place]:
            infos.setdefault(lane, {})[at] = info
        parts = ChunkParts(
            agent_ids=self._agent_ids[lanes],
            lanes=tuple(self.lanes[lanes]),
            columns=self._columns[lanes].copy(),
            blocks=self._blocks,
            module_ids=self._module_ids,
            env_index=env_index,
            episode_id=self.ids[place],
            spaces_of=self._spaces_of,
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
            "custom_data": self.custom_data[place],
            "agent_ids": parts.agent_ids,
            "env_states": self.env_states.get(place),
            "duration_s": self.durations_s[place],
        }

"""Episodes whose data are read, and whose agent episodes are built, on first access."""

import os
from collections.abc import Callable, Hashable, Mapping
from operator import attrgetter
from threading import RLock
from typing import Any, Self

import gymnasium as gym

from fastmarl.episodes.chunk import Chunk
from fastmarl.episodes.common import Episode
from fastmarl.episodes.single_agent import SingleAgentEpisode
from fastmarl.native._locked import locked

_reading = RLock()


def _renew_lock() -> None:
    """A forked process has a lock of its own: a thread that is not there may hold the old."""
    global _reading
    _reading = RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _field(name: str) -> Any:
    """A field of the chunk as an attribute of its episode."""

    def put(episode: "LazyEpisode", value: Any) -> None:
        setattr(episode.chunk, name, value)

    return property(attrgetter(f"chunk.{name}"), put, lambda episode: delattr(episode.chunk, name))


class LazyEpisode(Episode):
    """Holds a chunk. Threads may ask at the same time, and an interrupt may come at any line.

    Attributes:
        chunk: the data.
    """

    __slots__ = ("__weakref__", "_chunk")

    _chunk: Any  # a Chunk, or how to read it: (UnreadChunks, its index there, the episode's own data)
    id_: str = _field("id_")
    env_t_started: int = _field("env_t_started")
    env_t: int = _field("env_t")
    lookback: int = _field("lookback")
    is_terminated: bool = _field("is_terminated")
    is_truncated: bool = _field("is_truncated")
    agent_to_module_mapping_fn: Callable[[Any, Any], str] | None = _field("agent_to_module_mapping_fn")
    observation_space: Mapping[Any, gym.Space[Any]] = _field("observation_space")
    action_space: Mapping[Any, gym.Space[Any]] = _field("action_space")
    reset_seed: int | None = _field("reset_seed")

    @classmethod
    def of(cls, chunk: Chunk) -> Self:
        """The episode with these data."""
        episode = cls.__new__(cls)
        episode._chunk = chunk
        return episode

    @property
    def chunk(self) -> Chunk:
        chunk = self._chunk
        return chunk if type(chunk) is Chunk else locked(_reading, self._read)

    def _read(self) -> Chunk:
        if type(self._chunk) is not Chunk:
            chunks, index, own_data = self._chunk
            self._chunk = chunks.read(index, own_data)
        return self._chunk

    @property
    def agent_episodes(self) -> dict[Hashable, SingleAgentEpisode]:
        """By agent id, of agents with at least one transition in this chunk."""
        chunk = self._chunk
        built = chunk.agent_episodes if type(chunk) is Chunk else None
        return locked(_reading, self._build) if built is None else built

    @agent_episodes.setter
    def agent_episodes(self, agent_episodes: dict[Hashable, SingleAgentEpisode]) -> None:
        self.chunk.agent_episodes = agent_episodes

    def _build(self) -> dict[Hashable, SingleAgentEpisode]:
        chunk = self.chunk
        if chunk.agent_episodes is None:
            assert chunk.lanes is not None
            chunk.agent_episodes = chunk.lanes.agent_episodes()
        return chunk.agent_episodes

    def n_unbuilt_rows(self) -> int:
        """Rows of the agents whose agent episodes have not been built yet; nothing is built by that."""
        chunk = self._chunk
        if type(chunk) is not Chunk:
            return int(chunk[0].n_rows(chunk[1]))
        lanes = chunk.lanes
        return lanes.n_rows() if chunk.agent_episodes is None and lanes is not None else 0

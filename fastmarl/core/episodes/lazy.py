"""Episodes whose data are read, and whose agent episodes are built, on first access."""

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from threading import RLock
from typing import Any, Self, TypeVar

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.chunk import Blocks, Chunk, ChunkHead, ChunkLanes, Unbuilt
from fastmarl.core.episodes.common import Episode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.errors import EpisodeError
from fastmarl.core.native._locked import locked
from fastmarl.core.rllib_classes import is_of_rllib

SomeEpisode = TypeVar("SomeEpisode", bound="LazyEpisode")

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


def _spaces(name: str) -> Any:
    """A field with spaces by agent: those that are given, or else those of the agent episodes."""
    field = _field(name)

    def get(episode: "LazyEpisode") -> Any:
        given = field.fget(episode)
        return given or {
            agent: getattr(agent_episode, name)
            for agent, agent_episode in episode.agent_episodes.items()
            if getattr(agent_episode, name) is not None
        }

    return property(get, field.fset, field.fdel)


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
    observation_space: Mapping[Any, gym.Space[Any]] = _spaces("observation_space")
    action_space: Mapping[Any, gym.Space[Any]] = _spaces("action_space")
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

    def head(self) -> ChunkHead | None:
        """What the chunk holds beside its agents' steps, if nobody has read it, and that is little. Nothing is read or
        built by that."""
        chunk = self._chunk
        return None if type(chunk) is Chunk else chunk[0].head(*chunk[1:])

    def n_unbuilt_rows(self) -> int:
        """Rows of the agents whose agent episodes have not been built yet; nothing is built by that."""
        chunk = self._chunk
        if type(chunk) is not Chunk:
            return int(chunk[0].n_rows(chunk[1]))
        lanes = chunk.lanes
        return lanes.n_rows() if chunk.agent_episodes is None and lanes is not None else 0


def check_kind(episodes: Iterable[Any]) -> None:
    """Check that these are episodes of fastmarl.

    Raises:
        EpisodeError: one is of another class, such as RLlib's.
    """
    for kind in dict.fromkeys(map(type, episodes)):
        if not issubclass(kind, LazyEpisode):
            convert = "convert each with fastmarl.episodes.from_rllib()"
            way_out = convert if is_of_rllib(kind) else "pass what sample() returns"
            raise EpisodeError(f"expected episodes of fastmarl.episodes.MultiAgentEpisode, got one of "
                               f"{kind.__module__}.{kind.__qualname__}; {way_out}")  # fmt: skip


def in_numbers(episodes: Iterable[SomeEpisode]) -> Iterator[Unbuilt | SomeEpisode]:
    """These chunks in order: where nobody has asked for agent episodes, in numbers, those of one call that follow each
    other at once. Nothing is read or built for it."""
    episodes = list(episodes)
    check_kind(episodes)
    in_order = iter(episodes)
    for kind, group in groupby([episode._chunk for episode in episodes], type):
        chunks = list(group)
        of_kind = list(islice(in_order, len(chunks)))
        if kind is Chunk:
            yield from _read_in_numbers(of_kind)
        else:
            for call, places in groupby(chunks, itemgetter(0)):
                yield call.unbuilt([place[1:] for place in places])


def _read_in_numbers(episodes: list[SomeEpisode]) -> Iterator[Unbuilt | SomeEpisode]:
    # Chunks of one call may hold their blocks in different tuples or dicts, but these are equal.
    for blocks, group in groupby(map(_with_lanes, episodes), itemgetter(0)):
        if blocks is None:
            yield from (episode for _, episode, _ in group)
        else:
            yield _unbuilt([(episode.chunk, lanes) for _, episode, lanes in group])


def _with_lanes(episode: SomeEpisode) -> tuple[Blocks | None, SomeEpisode, Any]:
    """(blocks of its lanes, None if it has agent episodes; the episode; its lanes)."""
    chunk = episode.chunk
    lanes = chunk.lanes  # looked at first: they are let go when there are agent episodes
    return None if lanes is None or chunk.agent_episodes is not None else lanes.blocks, episode, lanes


def _unbuilt(chunks: list[tuple[Chunk, ChunkLanes]]) -> Unbuilt:
    """Of chunks with the same blocks."""
    return Unbuilt(
        ids=[lanes.episode_id for _, lanes in chunks],
        times=np.array([(chunk.env_t_started, chunk.env_t) for chunk, _ in chunks], np.int64),
        env_states=[chunk.env_states for chunk, _ in chunks],
        n_lanes=np.array([len(lanes.agent_ids) for _, lanes in chunks], np.int64),
        agent_ids=[agent_id for _, lanes in chunks for agent_id in lanes.agent_ids],
        columns=np.concatenate([lanes.columns for _, lanes in chunks]),
        blocks=chunks[0][1].blocks,
        module_ids=chunks[0][1].module_ids,
    )

"""Episodes that read their data and build their agent episodes on first access."""

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
from fastmarl.core.objects.rllib_classes import is_of_rllib

SomeEpisode = TypeVar("SomeEpisode", bound="LazyEpisode")

_reading = RLock()


def _renew_lock() -> None:
    """Replace the lock in a forked child, where the thread that holds it may not exist."""
    global _reading
    _reading = RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _field(name: str) -> Any:
    """Make a property of the episode that accesses a field of its chunk."""

    def put(episode: "LazyEpisode", value: Any) -> None:
        setattr(episode.chunk, name, value)

    return property(attrgetter(f"chunk.{name}"), put, lambda episode: delattr(episode.chunk, name))


def _spaces(name: str) -> Any:
    """Make a property for spaces by agent id; it falls back to the spaces of the agent episodes."""
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
    """Holds a chunk, and reads it lazily. Reading is thread-safe, and safe to interrupt at any line.

    Attributes:
        chunk: The episode's data.
    """

    __slots__ = ("__weakref__", "_chunk")

    _chunk: Any  # a Chunk, or a reference to an unread one: (UnreadChunks, index in it, the episode's own data)
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
        """Create an episode from a chunk."""
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
        """Agent episodes by agent id, for agents with at least one transition in this chunk."""
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
        """Return the head of an unread chunk that holds little besides its agents' steps, without reading it."""
        chunk = self._chunk
        return None if type(chunk) is Chunk else chunk[0].head(*chunk[1:])

    def n_unbuilt_rows(self) -> int:
        """Return the number of rows of agents whose agent episodes are not built yet, without building them."""
        chunk = self._chunk
        if type(chunk) is not Chunk:
            return int(chunk[0].n_rows(chunk[1]))
        lanes = chunk.lanes
        return lanes.n_rows() if chunk.agent_episodes is None and lanes is not None else 0


def check_kind(episodes: Iterable[Any]) -> None:
    """Check that these are fastmarl episodes.

    Raises:
        EpisodeError: If one is of another class, such as RLlib's.
    """
    for kind in dict.fromkeys(map(type, episodes)):
        if not issubclass(kind, LazyEpisode):
            convert = "convert each with fastmarl.episodes.from_rllib()"
            way_out = convert if is_of_rllib(kind) else "pass what sample() returns"
            raise EpisodeError(f"expected episodes of fastmarl.episodes.MultiAgentEpisode, got one of "
                               f"{kind.__module__}.{kind.__qualname__}; {way_out}")  # fmt: skip


def in_numbers(episodes: Iterable[SomeEpisode]) -> Iterator[Unbuilt | SomeEpisode]:
    """Yield these chunks in order, with consecutive unbuilt chunks of one call merged into one `Unbuilt`.

    Chunks whose agent episodes are built are yielded as they are. Nothing is read or built.
    """
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
    # Chunks of one call may hold their blocks in different but equal tuples or dicts.
    for blocks, group in groupby(map(_with_lanes, episodes), itemgetter(0)):
        if blocks is None:
            yield from (episode for _, episode, _ in group)
        else:
            yield _unbuilt([(episode.chunk, lanes) for _, episode, lanes in group])


def _with_lanes(episode: SomeEpisode) -> tuple[Blocks | None, SomeEpisode, Any]:
    """Return (blocks of its lanes or None if it has agent episodes, the episode, its lanes)."""
    chunk = episode.chunk
    lanes = chunk.lanes  # read first, since another thread may build the agent episodes and drop the lanes
    return None if lanes is None or chunk.agent_episodes is not None else lanes.blocks, episode, lanes


def _unbuilt(chunks: list[tuple[Chunk, ChunkLanes]]) -> Unbuilt:
    """Merge chunks that share their blocks."""
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

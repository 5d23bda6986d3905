"""Numeric form of the episodes of a call whose agent episodes have not been built."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from fastmarl.core.episodes.chunk import Blocks, Chunk, ChunkLanes, Unbuilt
from fastmarl.core.episodes.readable import ReadableEpisode, check_kind

SomeEpisode = TypeVar("SomeEpisode", bound=ReadableEpisode)


def in_numbers(episodes: Iterable[SomeEpisode]) -> Iterator[Unbuilt | SomeEpisode]:
    """Yield the chunks in order, merging consecutive unbuilt chunks of the same call into one `Unbuilt`.

    Chunks whose agent episodes have been built are yielded unchanged. No chunk is read or built.
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
    # Chunks of the same call may hold their blocks in distinct but equal tuples or dicts.
    for blocks, group in groupby(map(_with_lanes, episodes), itemgetter(0)):
        if blocks is None:
            yield from (episode for _, episode, _ in group)
        else:
            yield _unbuilt([(episode.chunk, lanes) for _, episode, lanes in group])


def _with_lanes(episode: SomeEpisode) -> tuple[Blocks | None, SomeEpisode, Any]:
    """Return (blocks of the lanes, or None if agent episodes have been built; the episode; its lanes)."""
    chunk = episode.chunk
    lanes = chunk.lanes  # read first, since another thread may build the agent episodes and drop the lanes
    return None if lanes is None or chunk.agent_episodes is not None else lanes.blocks, episode, lanes


def _unbuilt(chunks: list[tuple[Chunk, ChunkLanes]]) -> Unbuilt:
    """Merge chunks that share the same blocks."""
    return Unbuilt(
        ids=[lanes.episode_id for _, lanes in chunks],
        times=np.array([(chunk.env_t_started, chunk.env_t) for chunk, _ in chunks], np.int64),
        are_done=[chunk.is_terminated or chunk.is_truncated for chunk, _ in chunks],
        env_states=[chunk.env_states for chunk, _ in chunks],
        n_lanes=np.array([len(lanes.agent_ids) for _, lanes in chunks], np.int64),
        agent_ids=[agent_id for _, lanes in chunks for agent_id in lanes.agent_ids],
        columns=np.concatenate([lanes.columns for _, lanes in chunks]),
        blocks=chunks[0][1].blocks,
        module_ids=chunks[0][1].module_ids,
    )

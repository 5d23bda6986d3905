"""Chunks that wait to become part of a batch."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Self

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode


class PendingChunks:
    """Chunks sampled since the last batch.

    Args:
        only_whole: only whole episodes are wanted, from their reset on.
    """

    def __init__(self, only_whole: bool):
        self._only_whole = only_whole
        self._chunks: dict[str, list[MultiAgentEpisode]] = {}

    def copy(self) -> Self:
        """A copy; adding to or removing from either leaves the other unchanged."""
        other = type(self)(self._only_whole)
        other._chunks = {id_: list(chunks) for id_, chunks in self._chunks.items()}
        return other

    def add(self, chunk: MultiAgentEpisode) -> None:
        """Take a chunk. One before it may be missing: an interrupted call drops what is running."""
        before = self._chunks.get(chunk.id_)
        env_t = before[-1].env_t if before else 0
        if self._only_whole and chunk.env_t_started != env_t:
            self._chunks.pop(chunk.id_, None)
        else:
            self._chunks.setdefault(chunk.id_, []).append(chunk)

    def drop_all_but(self, running: Collection[str]) -> None:
        """Where only whole episodes are wanted: forget those that neither have ended nor are running."""
        if self._only_whole:
            self._chunks = {id_: chunks for id_, chunks in self._chunks.items() if chunks[-1].is_done or id_ in running}

    def ready(self) -> list[MultiAgentEpisode]:
        """The chunks that may become part of a batch: one for each episode, or several where an agent has respawned."""
        return [
            chunk
            for chunks in self._chunks.values()
            if chunks[-1].is_done or not self._only_whole
            for chunk in _joined(chunks)
        ]

    def remove(self, chunks: Collection[MultiAgentEpisode]) -> None:
        """They are in a batch."""
        for chunk in chunks:
            self._chunks.pop(chunk.id_, None)

    def episode_ids(self) -> set[str]:
        """Of all episodes that have chunks here."""
        return set(self._chunks)

    def all(self) -> list[MultiAgentEpisode]:
        return [chunk for chunks in self._chunks.values() for chunk in chunks]


def _joined(chunks: Sequence[MultiAgentEpisode]) -> list[MultiAgentEpisode]:
    """The chunks of an episode, those joined that can be. The given ones stay as they are: an interrupt spoils none."""
    joined: list[MultiAgentEpisode] = []
    for chunk in chunks if len(chunks) == 1 else map(_copy_of, chunks):
        if joined and _can_follow(joined[-1], chunk):
            joined[-1].concat_episode(chunk)
        else:
            joined.append(chunk)
    return joined


def _copy_of(episode: MultiAgentEpisode) -> MultiAgentEpisode:
    """Another chunk of the same arrays, which can be joined with others."""
    chunk, agent_episodes = episode.chunk, {}
    for agent_id, agent_episode in episode.agent_episodes.items():
        agent_episodes[agent_id] = copied = replace(agent_episode)
        copied.id_ = agent_episode.id_
        copied.custom_data.update(agent_episode.custom_data)
    return MultiAgentEpisode.of(replace(chunk, agent_episodes=agent_episodes, custom_data=dict(chunk.custom_data)))


def _can_follow(before: MultiAgentEpisode, chunk: MultiAgentEpisode) -> bool:
    """Whether they can be joined: nothing is missing between them, and no agent of the second ended in the first."""
    ended = {agent for agent, agent_episode in before.agent_episodes.items() if agent_episode.is_done}
    return before.env_t == chunk.env_t_started and ended.isdisjoint(chunk.agent_episodes)

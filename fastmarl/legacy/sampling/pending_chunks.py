"""Chunks that wait to become part of a batch."""

from collections.abc import Collection

from fastmarl.episodes.multi_agent import MultiAgentEpisode


class PendingChunks:
    """What was sampled since the last batch, with the chunks of an episode joined.

    Args:
        only_whole: only whole episodes are wanted, from their reset on.
    """

    def __init__(self, only_whole: bool):
        self._only_whole = only_whole
        self._chunks: dict[str, list[MultiAgentEpisode]] = {}  # several only where an agent has respawned

    def add(self, chunk: MultiAgentEpisode) -> None:
        """Take a chunk. One before it may be missing: an interrupted call loses what it had sampled."""
        before = self._chunks.get(chunk.id_)
        env_t = before[-1].env_t if before else 0
        if self._only_whole and chunk.env_t_started != env_t:
            self._chunks.pop(chunk.id_, None)
        elif before is None:
            self._chunks[chunk.id_] = [chunk]
        elif _can_follow(before[-1], chunk):
            before[-1].concat_episode(chunk)
        else:
            before.append(chunk)

    def drop_all_but(self, running: Collection[str]) -> None:
        """Where only whole episodes are wanted: forget those that neither have ended nor are running."""
        if self._only_whole:
            self._chunks = {id_: chunks for id_, chunks in self._chunks.items() if chunks[-1].is_done or id_ in running}

    def ready(self) -> list[MultiAgentEpisode]:
        """What may become part of a batch."""
        return [
            chunk for chunks in self._chunks.values() if chunks[-1].is_done or not self._only_whole for chunk in chunks
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


def _can_follow(before: MultiAgentEpisode, chunk: MultiAgentEpisode) -> bool:
    """Whether they can be joined: nothing is missing between them, and no agent of the second ended in the first."""
    ended = {agent for agent, agent_episode in before.agent_episodes.items() if agent_episode.is_done}
    return before.env_t == chunk.env_t_started and ended.isdisjoint(chunk.agent_episodes)

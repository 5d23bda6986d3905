"""State of episodes between batches, with chunks waiting for a batch and running sums for metrics."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple, Self

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.objects.public import public

OF_CALLBACKS = ("custom_metrics", "hist_data", "media")


@public("fastmarl.legacy")
class RolloutMetrics(NamedTuple):
    """Metrics of a finished episode, with the same fields as in RLlib.

    Attributes:
        episode_length: Number of env steps.
        episode_reward: Sum of recorded rewards of all agents.
        agent_rewards: (agent id, policy id) -> sum of recorded rewards of the agent.
        custom_metrics: Values stored by callbacks in `episode.custom_metrics` or logged with
            `metrics_logger.log_value()` since episodes were last reported; nested keys are joined with "/".
        perf_stats: See `EnvRunnerV2.perf_stats`.
        hist_data: Values stored by callbacks in `episode.hist_data`.
        media: Values stored by callbacks in `episode.media`.
        episode_faulty: True if an env has failed; all other fields except `perf_stats` are then empty.
        connector_metrics: Always empty.
    """

    episode_length: int = 0
    episode_reward: float = 0.0
    agent_rewards: dict[tuple[Hashable, str], float] = {}  # noqa: RUF012
    custom_metrics: dict[str, float] = {}  # noqa: RUF012
    perf_stats: dict[str, float] = {}  # noqa: RUF012
    hist_data: dict[str, list[float]] = {}  # noqa: RUF012
    media: dict[str, Any] = {}  # noqa: RUF012
    episode_faulty: bool = False
    connector_metrics: dict[str, Any] = {}  # noqa: RUF012

    @classmethod
    def of_failure(cls) -> Self:
        """Return the metrics of a failed env."""
        return cls(0, 0.0, {}, {}, {}, {}, {}, True, {})


@dataclass(frozen=True)
class EpisodeUnderWay:
    """An episode that is running or has chunks waiting for a batch.

    Objects are immutable, so an interrupt cannot leave them half-updated.

    Attributes:
        number: "eps_id" of the episode in batches, an int below 2**56.
        env_t: Number of env steps made, or None if a chunk is missing because an interrupted call dropped it.
        agent_index: Agent id -> index, in order of appearance.
        agent_rewards: See `RolloutMetrics`.
        agent_steps: Number of steps made by all agents.
        chunks: Chunks waiting for a batch.
    """

    number: int
    env_t: int | None = 0
    agent_index: dict[Hashable, int] = field(default_factory=dict)
    agent_rewards: dict[tuple[Hashable, str], float] = field(default_factory=dict)
    agent_steps: int = 0
    chunks: tuple[MultiAgentEpisode, ...] = ()

    @classmethod
    def of(cls, episode_id: str) -> Self:
        """Create an episode without chunks."""
        return cls(int.from_bytes(blake2b(episode_id.encode(), digest_size=7).digest(), "big"))

    def with_chunk(self, chunk: MultiAgentEpisode, *, only_complete: bool) -> Self:
        """Return the episode with a chunk added.

        If `only_complete`, an episode with a missing chunk keeps no chunks for a batch.
        """
        follows = self.env_t == chunk.env_t_started
        agent_index, agent_rewards = dict(self.agent_index), dict(self.agent_rewards)
        for agent_id in chunk.chunk.agent_ids:
            agent_index.setdefault(agent_id, len(agent_index))
        for agent_id, agent_episode in chunk.agent_episodes.items():
            key = agent_id, chunk.module_for(agent_id)
            agent_rewards[key] = agent_rewards.get(key, 0.0) + agent_episode.get_return()
        return replace(
            self,
            env_t=chunk.env_t if follows else None,
            agent_index=agent_index,
            agent_rewards=agent_rewards,
            agent_steps=self.agent_steps + chunk.agent_steps(),
            chunks=(*self.chunks, chunk) if follows or not only_complete else (),
        )

    def metrics(self, last: MultiAgentEpisode) -> RolloutMetrics:
        """Return the metrics of the finished episode, whose last chunk is `last`, without `perf_stats`."""
        custom, hist, media = (last.custom_data.get(name, {}) for name in OF_CALLBACKS)
        total = sum(self.agent_rewards.values())
        return RolloutMetrics(last.env_t, total, self.agent_rewards, custom, {}, hist, media, False, {})


def joined(chunks: Sequence[MultiAgentEpisode]) -> list[MultiAgentEpisode]:
    """Join the chunks of an episode, except where an agent has respawned or a chunk is missing.

    The given chunks are not modified.
    """
    made: list[MultiAgentEpisode] = []
    for chunk in chunks if len(chunks) == 1 else map(_copy_of, chunks):
        if made and _can_follow(made[-1], chunk):
            made[-1].concat_episode(chunk)
        else:
            made.append(chunk)
    return made


def _copy_of(episode: MultiAgentEpisode) -> MultiAgentEpisode:
    """Return a chunk that shares the arrays and can be extended with other chunks."""
    chunk, agent_episodes = episode.chunk, {}
    for agent_id, agent_episode in episode.agent_episodes.items():
        agent_episodes[agent_id] = copied = agent_episode.another(agent_episode.source)
        copied.custom_data.update(agent_episode.custom_data)
    return MultiAgentEpisode.of(replace(chunk, agent_episodes=agent_episodes, custom_data=dict(chunk.custom_data)))


def _can_follow(before: MultiAgentEpisode, chunk: MultiAgentEpisode) -> bool:
    """Return whether no step is missing between the chunks and no agent of the second ended in the first."""
    ended = {agent for agent, agent_episode in before.agent_episodes.items() if agent_episode.is_done}
    return before.env_t == chunk.env_t_started and ended.isdisjoint(chunk.agent_episodes)

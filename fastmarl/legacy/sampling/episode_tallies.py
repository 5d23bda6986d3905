"""What is kept of running episodes from one batch to the next, and reported when they end."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple, Self

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.public import public

OF_CALLBACKS = ("custom_metrics", "hist_data", "media")


@public("fastmarl.legacy")
class RolloutMetrics(NamedTuple):
    """An episode that has ended, in numbers; the fields are RLlib's.

    Args:
        episode_length: env steps.
        episode_reward: sum of all agents' rewards as recorded.
        agent_rewards: (agent id, policy id) -> the same of one agent.
        custom_metrics, hist_data, media: what callbacks have put into `episode.custom_data` under these names.
        perf_stats: see `EnvRunnerV2.perf_stats`.
        episode_faulty: whether an env has failed: the others are empty then.
        connector_metrics: always empty.
    """

    episode_length: int
    episode_reward: float
    agent_rewards: dict[tuple[Hashable, str], float]
    custom_metrics: dict[str, float]
    perf_stats: dict[str, float]
    hist_data: dict[str, list[float]]
    media: dict[str, Any]
    episode_faulty: bool
    connector_metrics: dict[str, Any]

    @classmethod
    def of_failure(cls) -> Self:
        """Of an env that has failed."""
        return cls(0, 0.0, {}, {}, {}, {}, {}, True, {})


@dataclass
class EpisodeTally:
    """A running episode.

    Attributes:
        number: the int that stands for its id in batches, below 2**56.
        env_t: steps so far; None: a chunk is missing, dropped by an interrupted call.
        agent_index: by agent id, in order of appearance.
        agent_rewards: as in RolloutMetrics.
    """

    number: int
    env_t: int | None = 0
    agent_index: dict[Hashable, int] = field(default_factory=dict)
    agent_rewards: dict[tuple[Hashable, str], float] = field(default_factory=dict)


class EpisodeTallies:
    """The tallies of all episodes that are running, or not in a batch yet."""

    def __init__(self) -> None:
        self._tallies: dict[str, EpisodeTally] = {}

    def copy(self) -> Self:
        """A copy; adding to either leaves the other unchanged."""
        other = type(self)()
        other._tallies = dict(self._tallies)
        return other

    def add(self, chunk: MultiAgentEpisode) -> RolloutMetrics | None:
        """Take the next chunk of an episode; returns its metrics, without perf stats, if it has ended and none is
        missing."""
        before = self._tallies.get(chunk.id_) or EpisodeTally(_number_of(chunk.id_))
        follows = before.env_t == chunk.env_t_started
        agent_index, agent_rewards = dict(before.agent_index), dict(before.agent_rewards)
        for agent_id in chunk.chunk.agent_ids:
            agent_index.setdefault(agent_id, len(agent_index))
        for agent_id, agent_episode in chunk.agent_episodes.items():
            key = agent_id, chunk.module_for(agent_id)
            agent_rewards[key] = agent_rewards.get(key, 0.0) + agent_episode.get_return()
        env_t = chunk.env_t if follows else None
        self._tallies[chunk.id_] = replace(before, env_t=env_t, agent_index=agent_index, agent_rewards=agent_rewards)
        if not chunk.is_done or not follows:
            return None
        custom, hist, media = (chunk.custom_data.get(name, {}) for name in OF_CALLBACKS)
        total = sum(agent_rewards.values())
        return RolloutMetrics(chunk.env_t, total, agent_rewards, custom, {}, hist, media, False, {})

    def __getitem__(self, episode_id: str) -> EpisodeTally:
        return self._tallies[episode_id]

    def keep_only(self, episode_ids: set[str]) -> None:
        """Forget all others."""
        self._tallies = {id_: tally for id_, tally in self._tallies.items() if id_ in episode_ids}


def _number_of(episode_id: str) -> int:
    return int.from_bytes(blake2b(episode_id.encode(), digest_size=7).digest(), "big")

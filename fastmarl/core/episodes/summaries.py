"""Statistics of an episode, and of a call of `sample()`."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from fastmarl.core.native._records import EpisodeRecord


@dataclass
class EpisodeSummary:
    """Statistics of a finished episode; returns and steps cover all of its chunks."""

    env_steps: int
    duration_s: float
    agent_returns: dict[Hashable, float]
    agent_steps: dict[Hashable, int]
    module_returns: dict[str, float]


def summary_of(record: EpisodeRecord, module_ids: Sequence[str]) -> EpisodeSummary:
    """Sum up a finished episode whose ended lanes are already settled; `module_ids` is indexed by module."""
    module_returns: dict[str, float] = {}
    for module, total in record.module_returns.items():
        module_id = module_ids[module]
        module_returns[module_id] = module_returns.get(module_id, 0.0) + total
    return EpisodeSummary(record.env_steps, record.duration_s, record.agent_returns, record.agent_steps, module_returns)


@dataclass
class CallSummary:
    """Statistics of one call of `sample()`."""

    num_episodes: int = 0  # finished episodes
    episodes: list[EpisodeSummary] = field(default_factory=list)  # the last ones of them
    agent_steps: dict[Hashable, int] = field(default_factory=dict)  # actions by agent id
    module_steps: dict[str, int] = field(default_factory=dict)  # actions by module id
    unattributed_reward: float = 0.0

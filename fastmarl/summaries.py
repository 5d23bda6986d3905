"""What was recorded, in numbers: of an episode, and of a call of sample()."""

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass
class EpisodeSummary:
    """An episode that has ended, in numbers; returns and steps are those of the whole episode."""

    env_steps: int
    duration_s: float
    agent_returns: dict[Hashable, float]
    agent_steps: dict[Hashable, int]
    module_returns: dict[str, float]


@dataclass
class CallSummary:
    """What one call of sample() has recorded, in numbers."""

    num_episodes: int = 0  # that have ended
    episodes: list[EpisodeSummary] = field(default_factory=list)  # the last of them
    agent_steps: dict[Hashable, int] = field(default_factory=dict)  # actions by agent id
    module_steps: dict[str, int] = field(default_factory=dict)  # actions by module id
    unattributed_reward: float = 0.0

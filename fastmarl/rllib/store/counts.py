"""What a call and its episodes have counted, for the metrics."""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass
class CallCounts:
    """What one call of sample() has counted.

    Counts by agent and by module are of observations, as RLlib's are: the steps in whose observation dict an agent was.
    No count in them is 0.
    """

    env_steps: int = 0
    agent_observations: dict[Hashable, int] = field(default_factory=dict)
    module_observations: dict[str, int] = field(default_factory=dict)
    episodes: int = 0  # that have ended
    step_failures: int = 0
    resets: int = 0  # of all envs at once, before the first tick
    ticks: int = 0  # steps of all envs at once
    forwards: int = 0  # ticks in which modules were asked
    lost_reward: float = 0.0  # sum of what was paid for no transition
    lengths: list[int] = field(default_factory=list)  # per tick: sum of the lengths of the chunks under way after it
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Totals of the stages "connect", "forward", "act" and "env_step"."""


@dataclass(slots=True)
class EpisodeNumbers:
    """A finished episode in numbers, all its chunks taken together. Agents go by their names in the metrics."""

    length: int  # in env steps
    episode_return: float
    duration_s: float
    agent_returns: dict[str, float]
    agent_steps: dict[str, int]
    module_returns: dict[str, float]

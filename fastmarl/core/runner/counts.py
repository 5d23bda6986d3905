"""Named counts of sampled steps and episodes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastmarl.core.episodes.summaries import CallSummary
from fastmarl.core.runner.goals import Goal

NAMED = 4096  # ids with a count of their own; a limit, so that reports don't grow with ever new ids
OTHERS = "__others__"


@dataclass
class Counts:
    """Calls, steps, episodes and lost rewards since the last report, or in the runner's life."""

    calls: int = 0
    pauses: int = 0  # intervals between two calls
    ticks: int = 0
    env_steps: int = 0
    episodes: int = 0
    agent_steps: Counter[str] = field(default_factory=Counter)
    module_steps: Counter[str] = field(default_factory=Counter)
    unattributed_reward: float = 0.0

    def add(self, goal: Goal, summary: CallSummary) -> None:
        """Add the counts of one call of `sample()`."""
        self.calls += 1
        self.ticks += goal.ticks
        self.env_steps += goal.env_steps
        self.episodes += summary.num_episodes
        add_by_name(self.agent_steps, summary.agent_steps)
        add_by_name(self.module_steps, summary.module_steps)
        self.unattributed_reward += summary.unattributed_reward

    def merge(self, other: "Counts") -> None:
        """Add the counts of another runner."""
        self.calls += other.calls
        self.pauses += other.pauses
        self.ticks += other.ticks
        self.env_steps += other.env_steps
        self.episodes += other.episodes
        add_by_name(self.agent_steps, other.agent_steps)
        add_by_name(self.module_steps, other.module_steps)
        self.unattributed_reward += other.unattributed_reward


def add_by_name(steps: Counter[str], by_id: Mapping[Any, int]) -> None:
    """Add counts under the names of agents or modules.

    Ids 1 and "1" share one count; ids beyond the first NAMED share the count OTHERS.
    """
    for id_, n in by_id.items():
        name = str(id_)
        steps[name if name in steps or len(steps) < NAMED else OTHERS] += n

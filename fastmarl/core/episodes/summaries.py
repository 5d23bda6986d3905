"""Statistics of episodes and of `sample()` calls."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fastmarl.core.native._records import EpisodeRecord

Number = TypeVar("Number", int, float)


@dataclass
class EpisodeSummary:
    """Statistics of a finished episode over all of its chunks; agents are keyed by name."""

    env_steps: int
    duration_s: float
    agent_returns: dict[str, float]
    agent_steps: dict[str, int]
    module_returns: dict[str, float]


def summary_of(record: EpisodeRecord, module_ids: Sequence[str]) -> EpisodeSummary:
    """Return the statistics of a finished episode whose lanes are settled; `module_ids` is indexed by module index."""
    module_returns: dict[str, float] = {}
    for module, total in record.module_returns.items():
        module_id = module_ids[module]
        module_returns[module_id] = module_returns.get(module_id, 0.0) + total
    returns, steps = _by_name(record.agent_returns), _by_name(record.agent_steps)
    return EpisodeSummary(record.env_steps, record.duration_s, returns, steps, module_returns)


def _by_name(numbers: Mapping[Hashable, Number]) -> dict[str, Number]:
    """Sum numbers by agent name, `str(agent_id)`; as in RLlib, the ids 1 and "1" share a name."""
    by_name: dict[str, Number] = {}
    for agent_id, number in numbers.items():
        name = str(agent_id)
        by_name[name] = by_name[name] + number if name in by_name else number
    return by_name


@dataclass
class CallSummary:
    """Statistics of a single `sample()` call."""

    num_episodes: int = 0  # finished episodes
    episodes: list[EpisodeSummary] = field(default_factory=list)  # the last ones to finish
    agent_steps: dict[Hashable, int] = field(default_factory=dict)  # agent id -> number of actions
    module_steps: dict[str, int] = field(default_factory=dict)  # module id -> number of actions
    unattributed_reward: float = 0.0

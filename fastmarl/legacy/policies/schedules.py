"""Values that change with the number of env steps."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.checks import is_number


def scheduled(name: str, constant: float, schedule: Any, timestep: int) -> float:
    """Return the value of an option at a timestep.

    Args:
        name: Name of the option.
        constant: The value without a schedule.
        schedule: [timestep, value] pairs in order of their timesteps, between which values are interpolated; outside of
            them, the last value holds, as in RLlib. None: no schedule.
        timestep: Number of env steps.

    Raises:
        ConfigError: If the schedule is none of these.
    """
    if schedule is None:
        return constant
    if not _is_schedule(schedule):
        raise ConfigError(f"{name}_schedule must be a list of [timestep, value] with ascending timesteps, got "
                          f"{schedule!r:.200}")  # fmt: skip
    points = [(int(t), float(value)) for t, value in schedule]
    for (t, value), (next_t, next_value) in pairwise(points):
        if t <= timestep < next_t:
            return value + (timestep - t) / (next_t - t) * (next_value - value)
    return points[-1][1]


def _is_schedule(schedule: Any) -> bool:
    if not isinstance(schedule, Sequence) or isinstance(schedule, str) or not schedule:
        return False
    if not all(isinstance(pair, Sequence) and len(pair) == 2 and all(map(is_number, pair)) for pair in schedule):
        return False
    times = [t for t, _ in schedule]
    return times == sorted(times)

"""Rounds of turns: in each round every sampler of a setting runs once, while the others are stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.peers.child import Child, ChildError, MissingError
from benchmarks.peers.entries import HALVES, Entry, Setting

MEASURED, FAILED, MISSING = "measured", "failed", "not installed"
STARTED_AT_ONCE = 3  # starting samplers share the cores


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Durations and time limits, in seconds."""

    rounds: int = 3
    seconds: float = 1.0
    """Minimum of a turn; whole calls are timed."""
    warm: float = 0.3
    """Sampling before that, in each turn."""
    start_timeout: float = 120.0
    turn_timeout: float = 60.0


def measure_setting(
    setting: Setting,
    samplers: Sequence[Entry],
    python_of: dict[str, str],
    pace: Pace,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure these samplers, and both halves of the limit, in turn.

    Args:
        setting: The work.
        samplers: The samplers.
        python_of: Name of an entry -> the Python that runs it.
        pace: Durations and time limits.
        progress: Is called with a text before each step.

    Returns:
        The setting's fields, "rounds", "seconds" and "results". Each entry of "results" has "peer" and "status"
        ("measured", "failed" or "not installed"); "error" unless it is measured; "config" and "versions" if it was
        ready; and "agent_steps_per_second", one number per round, if it is measured.
    """
    entries = (*HALVES, *samplers)
    results: dict[str, dict[str, Any]] = {entry.name: {"peer": entry.name} for entry in entries}
    speeds: dict[str, list[float]] = {entry.name: [] for entry in entries}
    running: dict[str, Child] = {}

    @contextmanager
    def who_fails_leaves(name: str) -> Iterator[None]:
        try:
            yield
        except ChildError as error:
            results[name] |= {"status": MISSING if isinstance(error, MissingError) else FAILED, "error": str(error)}
            running.pop(name).end()

    with ExitStack() as stack:
        for first in range(0, len(entries), STARTED_AT_ONCE):
            some = entries[first : first + STARTED_AT_ONCE]
            progress(f"{setting}: starting {', '.join(entry.name for entry in some)}")
            for entry in some:
                child = Child(python_of[entry.name], entry.module, asdict(setting))
                running[entry.name] = stack.enter_context(child)
            for entry in some:
                with who_fails_leaves(entry.name):
                    results[entry.name] |= running[entry.name].wait_until_ready(pace.start_timeout)
        for i in range(pace.rounds):
            for name, child in [*running.items()]:
                progress(f"{setting}: round {i + 1} of {pace.rounds}, {name}")
                with who_fails_leaves(name):
                    speeds[name].append(child.turn(pace.warm, pace.seconds, pace.turn_timeout))
    for name in running:
        results[name] |= {"status": MEASURED, "agent_steps_per_second": speeds[name]}
    return {**asdict(setting), "rounds": pace.rounds, "seconds": pace.seconds, "results": [*results.values()]}

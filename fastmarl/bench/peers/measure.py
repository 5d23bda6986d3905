"""Rounds of turns: in each, every sampler of a setting runs once, while the others stand still."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from fastmarl.bench.peers.child import Child, ChildError, MissingError
from fastmarl.bench.peers.entries import HALVES, Entry, Setting

MEASURED, FAILED, MISSING = "measured", "failed", "not installed"
STARTED_AT_ONCE = 3  # all that start share the cores


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long things may take, in seconds."""

    rounds: int = 3
    seconds: float = 1.0
    """Of a turn, at least; whole calls are timed."""
    warm: float = 0.3
    """Of sampling before that, in each turn."""
    start_timeout: float = 120.0
    turn_timeout: float = 60.0


def measure_setting(
    setting: Setting,
    samplers: Sequence[Entry],
    python_of: dict[str, str],
    pace: Pace,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure them, and both halves of the limit, in turn.

    Returns:
        The setting's fields, "rounds", "seconds" and "results": for each entry "peer", "status" ("measured", "failed"
        or "not installed"), "error" if it isn't measured, "config" and "versions" if it was ready, and
        "agent_steps_per_second", a number for each round, if it is measured.
    """
    entries = (*HALVES, *samplers)
    results: dict[str, dict[str, Any]] = {entry.name: {"peer": entry.name} for entry in entries}
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for some in _batches(entries, STARTED_AT_ONCE):
            progress(f"{setting}: starting {', '.join(entry.name for entry in some)}")
            started = {
                entry.name: stack.enter_context(Child(python_of[entry.name], entry.module, asdict(setting)))
                for entry in some
            }
            children |= _ready(started, results, pace)
        _take_turns(setting, children, results, pace, progress)
    return {**asdict(setting), "rounds": pace.rounds, "seconds": pace.seconds, "results": [*results.values()]}


def _ready(started: dict[str, Child], results: dict[str, dict[str, Any]], pace: Pace) -> dict[str, Child]:
    """Those that are; the results of the others say why they aren't."""
    ready = {}
    for name, child in started.items():
        try:
            results[name] |= child.wait_until_ready(pace.start_timeout)
            ready[name] = child
        except ChildError as error:
            results[name] |= _unmeasured(error)
            child.end()
    return ready


def _take_turns(
    setting: Setting,
    children: dict[str, Child],
    results: dict[str, dict[str, Any]],
    pace: Pace,
    progress: Callable[[str], None],
) -> None:
    """Who fails has no further turn, and no figures."""
    speeds: dict[str, list[float]] = {name: [] for name in children}
    for i in range(pace.rounds):
        for name, child in [*children.items()]:
            progress(f"{setting}: round {i + 1} of {pace.rounds}, {name}")
            try:
                speeds[name].append(child.turn(pace.warm, pace.seconds, pace.turn_timeout))
            except ChildError as error:
                results[name] |= _unmeasured(error)
                children.pop(name).end()
    for name in children:
        results[name] |= {"status": MEASURED, "agent_steps_per_second": speeds[name]}


def _unmeasured(error: ChildError) -> dict[str, str]:
    return {"status": MISSING if isinstance(error, MissingError) else FAILED, "error": str(error)}


def _batches(entries: Iterable[Entry], size: int) -> list[list[Entry]]:
    entries = list(entries)
    return [entries[i : i + size] for i in range(0, len(entries), size)]

"""Merges connector states and shares the result among all runners."""

from collections.abc import Iterable
from typing import Any

from fastmarl.distributed.fleet import Fleet, raise_first


def synchronise(fleet: Fleet) -> None:
    """Merge the connector states of all runners; see `EnvRunnerGroup.sync_connectors()`."""
    reported = fleet.ask(fleet.ready(), "get_connectors")
    give_merged(fleet, [reported.get(runner.index, runner.connectors) for runner in fleet.runners])


def give_merged(fleet: Fleet, states: Iterable[dict[str, Any]]) -> None:
    """Merge these states, if there are any, and send the result to all runners."""
    known = [state for state in states if state]
    if known:
        _give(fleet, fleet.ask_one("merge_connectors", known))


def _give(fleet: Fleet, state: dict[str, Any]) -> None:
    reference = fleet.actors.put(state)
    calls = []
    for runner in fleet.runners:
        if runner.is_lost:  # its counts are included and must not be added again
            runner.connectors = state
            continue
        calls.append(fleet.call(runner, "set_connectors", reference))  # a starting runner executes it later
        runner.keep_connectors(state, calls[-1].number)
    fleet.answers([call for call in calls if call.runner.is_ready])
    raise_first(calls)

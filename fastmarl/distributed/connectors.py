"""What the connectors of all runners have counted, together."""

from collections.abc import Iterable
from typing import Any

from fastmarl.distributed.fleet import Fleet, raise_first


def synchronise(fleet: Fleet) -> None:
    """See `EnvRunnerGroup.sync_connectors()`."""
    told = fleet.ask(fleet.ready(), "get_connectors")
    give_merged(fleet, [told.get(runner.index, runner.connectors) for runner in fleet.runners])


def give_merged(fleet: Fleet, states: Iterable[dict[str, Any]]) -> None:
    """Give all runners what these states make together, if they know anything."""
    known = [state for state in states if state]
    if known:
        _give(fleet, fleet.ask_one("merge_connectors", known))


def _give(fleet: Fleet, state: dict[str, Any]) -> None:
    reference = fleet.actors.put(state)
    calls = []
    for runner in fleet.runners:
        if runner.is_lost:  # what it had counted is in there, and not to be added again
            runner.connectors = state
            continue
        calls.append(fleet.call(runner, "set_connectors", reference))  # one that is being made takes it then
        runner.keep_connectors(state, calls[-1].number)
    fleet.answers([call for call in calls if call.runner.is_ready])
    raise_first(calls)

"""Changes the number of runners in a group."""

from collections.abc import Sequence

from fastmarl.distributed.connectors import synchronise
from fastmarl.distributed.fleet import Fleet, raise_first
from fastmarl.distributed.runners import RemoteRunner


def resize(fleet: Fleet, n: int) -> None:
    """Change the number of runners; see `EnvRunnerGroup.resize()`."""
    synchronise(fleet)
    kept, leaving = fleet.runners[:n], fleet.runners[n:]
    fleet.wait_for_all_of(leaving)
    try:
        calls = fleet.close(leaving)
    finally:  # also after an interrupt: their envs may be closed
        fleet.runners = kept
    raise_first(calls)
    add(fleet, range(len(kept), n))
    fill(fleet, [runner for runner in kept if runner.is_lost])


def fill(fleet: Fleet, lost: Sequence[RemoteRunner]) -> None:
    """Replace lost runners.

    Raises:
        Exception: The error of a runner that cannot start. It then remains lost.
    """
    for runner in lost:
        runner.n_replaced = 0
        fleet.replace(runner)
    fleet.wait_for_starts(lost)


def add(fleet: Fleet, indices: range) -> None:
    """Add runners with these indices once all of them have started.

    Raises:
        Exception: The error of a runner that cannot start. No runner is then added.
    """
    runners, num_configured = fleet.runners, fleet.num_configured
    fleet.num_configured = indices.stop
    known = next((runner.connectors for runner in runners if runner.connectors), {})
    steps = fleet.env_steps_at(max((runner.t for runner in runners), default=0))
    added = [fleet.new_runner(index) for index in indices]
    try:
        for runner in added:
            runner.state = known | steps
            fleet.start(runner, runner.state, is_module_wanted=not runners and runner is added[0])
        fleet.wait_for_starts(added)
        fleet.available |= dict.fromkeys(added)
        fleet.runners = runners + added
    except BaseException:
        fleet.runners, fleet.num_configured = runners, num_configured
        for runner in added:
            fleet.let_go(runner)
            fleet.arrivals.take_error(runner)
        raise

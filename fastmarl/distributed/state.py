"""State of a group: the weights, the counters, and the state of each runner."""

from itertools import cycle
from typing import Any

from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_keys, check_mapping, whole_number
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.distributed.connectors import give_merged
from fastmarl.distributed.fleet import Fleet, raise_first
from fastmarl.distributed.metrics import LIFETIME, GroupMetrics
from fastmarl.distributed.runners import RemoteRunner

COMPONENTS = ("rl_module", "weights_seq_no", *LIFETIME, "env_runners", "unused_incarnations")
Saved = list[tuple[int, dict[str, Any]]]  # (incarnation, state) of each runner


class GroupState:
    """Gets and sets the state of a group.

    Args:
        fleet, module, metrics: Parts of the group.
    """

    def __init__(self, fleet: Fleet, module: MultiRLModule, metrics: GroupMetrics):
        self._fleet, self._module, self._metrics = fleet, module, metrics

    def get(self) -> dict[str, Any]:
        """Return the state; see `EnvRunnerGroup.get_state()`."""
        fleet = self._fleet
        reported = fleet.ask(fleet.ready(), "get_state")
        weights, seq_no = fleet.weights.fetch()  # together: another thread may publish new weights in between
        return {
            "rl_module": weights,
            "weights_seq_no": seq_no,
            **self._metrics.get_state(),
            "env_runners": [
                {"incarnation": self._successor_of(runner), "state": reported.get(runner.index, runner.state)}
                for runner in fleet.runners
            ],
            "unused_incarnations": fleet.unused_incarnations(),  # including indices without a runner
        }

    def _successor_of(self, runner: RemoteRunner) -> int:
        """Return the incarnation that continues from the runner state: for a lost runner, one with unused seeds."""
        return self._fleet.unused_incarnation(runner.index) if runner.is_lost else runner.incarnation

    def set(self, state: dict[str, Any]) -> None:
        """Restore a state; see `EnvRunnerGroup.set_state()`."""
        check_keys("the state of a group", state, COMPONENTS)
        self._module.check_state(state["rl_module"])
        seq_no = whole_number("weights_seq_no", state["weights_seq_no"])
        self._metrics.check_state(state)
        saved, unused = _checked(state["env_runners"]), _checked_unused(state["unused_incarnations"])
        self._check_in_runners(saved)
        self._drop_parts()
        self._module.set_state(state["rl_module"])
        self._fleet.weights.publish(state["rl_module"], seq_no)
        self._metrics.set_state(state)
        for index, incarnation in enumerate(unused):  # a resize() may start runners with all of these indices
            self._fleet.mark_used(index, incarnation - 1)
        self._give(saved, int(state[LIFETIME[0]]))
        if len(saved) != len(self._fleet.runners):
            give_merged(
                self._fleet,
                [{option: own[option] for option in CONNECTOR_OPTIONS if own.get(option)} for _, own in saved],
            )

    def _check_in_runners(self, saved: Saved) -> None:
        """Check that the runners accept the saved states.

        Raises:
            ConfigError: If a state is rejected.
        """
        fleet = self._fleet
        ready = cycle(fleet.ready())
        calls = [fleet.call(next(ready), "check_state", own) for _, own in saved]
        fleet.answers(calls)
        raise_first(calls)

    def _drop_parts(self) -> None:
        fleet = self._fleet
        fleet.wait_for_all_of(fleet.runners)
        fleet.new["num_samples_dropped"] += len(fleet.arrivals.take_batches())
        fleet.available = dict.fromkeys(fleet.runners)

    def _give(self, saved: Saved, t: int) -> None:
        """Restore the states of the existing runners.

        Args:
            t: Env steps of all runners, from which exploration schedules continue if the number of runners differs.
        """
        fleet, calls, begun = self._fleet, [], []
        differs = len(saved) != len(fleet.runners)
        for runner, (incarnation, own) in zip(fleet.runners, saved, strict=False):
            goes_on = runner.is_ready and runner.incarnation == incarnation
            if differs:
                own = own | fleet.env_steps_at(t, runner if goes_on else None)
            if goes_on:
                calls.append(fleet.call(runner, "set_state", own))
                number = calls[-1].number
            else:
                fleet.end_actor(runner)
                number = fleet.restart(runner, incarnation, own).number
                begun.append(runner)
            runner.n_replaced = 0
            runner.keep_state(own, number)
        for runner in fleet.runners[len(saved) :]:
            if runner.is_ready:
                steps = fleet.env_steps_at(t, runner)
                calls.append(fleet.call(runner, "set_state", steps))
                runner.keep_state(runner.state | steps, calls[-1].number)
        fleet.answers(calls)
        raise_first(calls)
        fleet.wait_for_starts(begun)


def _checked(states: Any) -> Saved:
    """Check a list of runner states and return it.

    Raises:
        ConfigError: If it is invalid.
    """
    if not isinstance(states, (list, tuple)) or not states:
        raise ConfigError(f"env_runners must be a list of states, one per runner, got {states!r:.200}")
    found = []
    for each in states:
        check_keys("the state of an env runner", each, ("incarnation", "state"))
        check_mapping("the state of an env runner", each["state"])
        found.append((whole_number("incarnation", each["incarnation"]), dict(each["state"])))
    return found


def _checked_unused(numbers: Any) -> list[int]:
    """Check a list of incarnations and return it.

    Raises:
        ConfigError: If it is invalid.
    """
    if not isinstance(numbers, (list, tuple)):
        raise ConfigError(f"unused_incarnations must be a list of integers, one per runner, got {numbers!r:.200}")
    return [whole_number("an unused incarnation", number) for number in numbers]

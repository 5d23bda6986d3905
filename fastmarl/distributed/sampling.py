"""Sampling methods of a group."""

from collections.abc import Callable, Iterator
from time import perf_counter

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.errors.checks import check_bool
from fastmarl.core.store.request import Request
from fastmarl.distributed.fleet import Fleet
from fastmarl.distributed.host import HostReport
from fastmarl.distributed.metrics import GroupMetrics
from fastmarl.distributed.parts import SamplePart
from fastmarl.distributed.runners import RemoteRunner
from fastmarl.runner.loop.goals import make_goal


def checked(request: Request, config: EnvRunnerConfig) -> Request:
    """Check a request for all runners and return it unchanged.

    Raises:
        ConfigError: If an argument is invalid; raised here once instead of in each runner.
    """
    check_bool("explore", config.explore if request.explore is None else request.explore)
    make_goal(config, request, config.num_envs_per_env_runner)
    return request


class GroupSampling:
    """Implements `EnvRunnerGroup.sample()` and `EnvRunnerGroup.sample_ready()`."""

    def __init__(self, fleet: Fleet, metrics: GroupMetrics):
        self._fleet = fleet
        self._metrics = metrics

    def sample(self, request: Request) -> list[SamplePart]:
        """Call every runner once; see `EnvRunnerGroup.sample()`."""
        fleet, begun = self._fleet, perf_counter()
        while True:
            calls = [fleet.call(runner, "sample", request) for runner in fleet.runners if runner.is_ready]
            fleet.answers(calls)
            if error := fleet.arrivals.take_error():
                raise error
            if fleet.arrivals:
                break
            fleet.wait_for_a_runner()
        parts = [self._hand_out(runner, report) for runner, report in fleet.arrivals.take_batches()]
        self._metrics.seconds_waited += perf_counter() - begun
        return parts

    def parts(self, request: Request, in_flight: float, check_usable: Callable[[str], None]) -> Iterator[SamplePart]:
        """Call runners as long as parts are requested; see `EnvRunnerGroup.sample_ready()`.

        Args:
            request: The arguments of each call.
            in_flight: Maximum number of calls queued at a runner.
            check_usable: Called with the method name; raises an error if the group cannot be used.
        """
        check_usable("sample_ready()")
        self._fleet.recover()
        self._fleet.available = dict.fromkeys(self._fleet.runners)
        while True:
            check_usable("sample_ready()")
            begun = perf_counter()
            self._feed(request, in_flight)
            while (oldest := self._fleet.arrivals.take()) is None:
                self._fleet.check_that_some_are_there()
                self._fleet.collect()
                self._feed(request, in_flight)
            self._metrics.seconds_waited += perf_counter() - begun
            if isinstance(oldest.came, Exception):
                raise oldest.came
            yield self._hand_out(oldest.runner, oldest.came)

    def _feed(self, request: Request, in_flight: float) -> None:
        available, self._fleet.available = self._fleet.available, {}
        self._fleet.feed(available, request, in_flight)

    def _hand_out(self, runner: RemoteRunner, report: HostReport) -> SamplePart:
        self._fleet.available[runner] = None
        part = SamplePart(report.batch, report.weights_seq_no, runner.index, report.increment)
        self._metrics.add(part)
        return part

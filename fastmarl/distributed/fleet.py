"""Calls runners and replaces lost ones."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from time import monotonic
from typing import Any, TypeVar

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.errors import EnvRunnerLostError
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.core.processes.child import CLOSE_TIMEOUT_S
from fastmarl.core.processes.cores import usable_cores
from fastmarl.core.store.request import Request
from fastmarl.distributed.actors import ActorLost, Actors
from fastmarl.distributed.calls import Arrival, Arrivals, Call, CallsInFlight
from fastmarl.distributed.host import ENV_STEPS, HostFailure, HostReport, MakeBatch, RunnerPlan
from fastmarl.distributed.parts import owned
from fastmarl.distributed.runners import NOTHING_SENT, RemoteRunner
from fastmarl.distributed.weights import NewestWeights

T = TypeVar("T")

LOOKS_EVERY_S = 1.0  # seconds between checks for timed-out runners
NO_LIMIT = -1
COUNTED = ("num_samples_dropped", "num_env_runner_restarts")
DURING = {"start": "creating its runner", "sample": "sampling", "stop": "closing its envs"}


class Fleet:
    """Calls runners, takes their results, and replaces lost runners.

    Args:
        actors: The transport.
        config, make_batch: Passed to the runners.
        max_restarts: How many times in a row a runner is replaced without delivering a batch, or NO_LIMIT.
        sample_timeout_s: Time limit of a call in seconds.
        start_timeout_s: Time limit for starting a runner in seconds.

    Attributes:
        runners: All runners, by index.
        calls: Calls whose results have not been taken.
        available: Runners that may accept more calls of sample().
        arrivals: Batches and errors received but not returned yet.
        new: Counts since the last report, named in `COUNTED`.
        weights: The latest weights.
        num_configured: Number of runners in the config of new runners.
    """

    def __init__(
        self,
        actors: Actors,
        config: EnvRunnerConfig,
        make_batch: MakeBatch,
        *,
        max_restarts: int,
        sample_timeout_s: float,
        start_timeout_s: float,
    ):
        self.actors = actors
        self._config = config
        self._make_batch = make_batch
        self._max_restarts = max_restarts
        self._sample_timeout_s, self._start_timeout_s = sample_timeout_s, start_timeout_s
        self.runners: list[RemoteRunner] = []
        self.calls = CallsInFlight(actors.wait)
        self.available: dict[RemoteRunner, None] = {}
        self.arrivals = Arrivals()
        self.new = dict.fromkeys(COUNTED, 0)
        self.weights = NewestWeights(actors)
        self._guard = CallGuard()
        self._method = "the constructor"  # current public method, for errors
        self.num_configured = 1
        self._numbers = count()
        self._incarnations: dict[int, int] = {}  # runner index -> incarnation of its next replacement

    # Calls of runners.

    @property
    def num_ready(self) -> int:
        return sum(runner.is_ready for runner in self.runners)

    def ready(self) -> list[Any]:
        """Return the runners that can be called, waiting until there is at least one.

        Raises:
            EnvRunnerLostError: If all runners are lost.
        """
        self.wait_for_a_runner()
        return [runner for runner in self.runners if runner.is_ready]

    def wait_for_a_runner(self) -> None:
        while not any(runner.is_ready for runner in self.runners):
            self.check_that_some_are_there()
            self.collect()

    def check_that_some_are_there(self) -> None:
        if all(runner.is_lost for runner in self.runners):
            if error := self.arrivals.take_error():  # why the last runner was lost
                raise error
            raise EnvRunnerLostError(None, "all env runners of the group are lost; create a new group")

    def ask(self, runners: Sequence[RemoteRunner], method: str, *args: Any) -> dict[int, Any]:
        """Call a method of these runners and return runner index -> result, omitting lost runners."""
        calls = [self.call(runner, method, *args) for runner in runners]
        self.answers(calls)
        raise_first(calls)
        return {call.runner.index: call.value for call in calls if call.is_done}

    def ask_one(self, method: str, *args: Any) -> Any:
        """Call a method of the first runner, or of another one if it is lost, and return the result."""
        while True:
            for answer in self.ask(self.ready()[:1], method, *args).values():
                return answer

    def call(self, runner: RemoteRunner, method: str, *args: Any, timeout_s: float | None = None) -> Call:
        """Call a method of a runner host.

        The call carries the latest weights unless the runner already has them. A starting runner gets them later.
        """
        weights, seq_no = self.weights.newest
        are_due = runner.is_ready and runner.sent_seq_no != seq_no
        reference = self.actors.call(runner.handle, method, seq_no, weights if are_due else None, *args)
        timeout_s = self._sample_timeout_s if timeout_s is None else timeout_s
        call = Call(next(self._numbers), runner, method, timeout_s, reference)
        self.calls.add(call)
        if are_due:
            runner.sent_seq_no = seq_no
        return call

    def feed(self, runners: Iterable[RemoteRunner], request: Request, in_flight: float) -> None:
        """Call `sample()` until each runner has `in_flight` calls that are open or have unreturned results."""
        for runner in runners:
            while runner.is_ready and self.calls.count_of(runner) + self.arrivals.count_of(runner) < in_flight:
                self.call(runner, "sample", request)

    def answers(self, calls: Iterable[Call]) -> None:
        """Wait until none of these calls is open."""
        waited = list(calls)
        while any(call.is_open for call in waited):
            self.collect()

    def wait_for_all_of(self, runners: Sequence[RemoteRunner]) -> None:
        """Take the results of all calls of these runners.

        A batch from another machine may arrive after the small results of later calls.
        """
        ready = {runner for runner in runners if runner.is_ready}
        self.answers([call for call in self.calls.calls() if call.runner in ready])

    def check_idle(self, method: str) -> None:
        """Check that no call is running, in this or another thread, and register this method as the current one.

        Raises:
            RunnerBusyError: If a call is running.
        """
        self._guard.check(method)
        self._method = method

    def run(self, method: str, function: Callable[..., T], **arguments: Any) -> T:
        """Call a function that uses `take_results()`, guarded against other calls, and return its result."""
        return self._guard.run(method, function, arguments)

    def restart_timeouts(self, timeout_s: float) -> None:
        """Restart the timeouts of all calls of sample(), with a new limit."""
        self._sample_timeout_s = timeout_s
        self.calls.restart_timeouts("sample", timeout_s)

    def collect(self) -> None:
        """Take the results that have arrived, waiting briefly if there are none; replace lost runners."""
        self._guard.run(self._method, self.take_results, {})

    def take_results(self) -> None:
        """Do the same as `collect()`, but within a call that `run()` already guards."""
        ready = self.calls.ready(min(LOOKS_EVERY_S, self._sample_timeout_s))
        for call in ready:
            if call.is_open:  # else its runner was lost just now
                self._take(call)
        for call in self.calls.overdue(is_idle=not ready):
            if self.actors.is_answered(call.reference):  # finished in time, but not collected in time
                continue
            way_out = self.actors.late_start if call.method == "start" else ""
            problem = f"did not answer {call.method}() within {call.timeout_s:g} s and was terminated{way_out}"
            self._lose(call.runner, self.actors.late(call.runner.index, problem))

    def _take(self, call: Call) -> None:
        runner = call.runner
        try:
            value = self.actors.get(call.reference)
        except ActorLost as error:
            self._lose(runner, self.actors.lost(runner.index, str(error)))
            return
        except Exception as error:
            self.calls.remove(call)
            self.available[runner] = None
            self._fail(call, self._raised(error, call))
            return
        if self.actors.lends_arrays:
            value = self._owned(value)
        self.calls.remove(call)
        self.available[runner] = None  # after any call, as only this one may have blocked sample()
        call.finish(value)
        if call.method == "start":
            runner.start, runner.was_ready = value, True
        elif call.method == "sample":
            runner.keep(value, call.number)
            self.arrivals.add(Arrival(call.number, runner, value))
            call.value = None  # stored in the arrival

    def _owned(self, value: Any) -> Any:
        if isinstance(value, HostReport):
            return replace(value, batch=owned(value.batch), state=owned(value.state))
        return owned(value)

    def _raised(self, error: Exception, call: Call) -> Exception:
        """Return the error raised by a call, with a note on where it was raised."""
        runner = call.runner
        if isinstance(error, HostFailure):
            error = error.original(lambda last_line: self.actors.foreign(runner.index, last_line))
        during = DURING.get(call.method, f"{call.method}() ran")
        name = self.actors.runner_name.format(runner.index)
        error.add_note(f"fastmarl: raised by {name}{runner.whereabouts}, while {during}")
        return error

    def _fail(self, call: Call, error: Exception) -> None:
        """Handle an error raised by a call."""
        call.fail(error)
        call.runner.sent_seq_no = NOTHING_SENT  # the weights may be the cause, so treat them as not sent
        if call.method == "sample":
            self.arrivals.add(Arrival(call.number, call.runner, error))
        elif call.method == "start":
            self._give_up(call.runner, error)

    def _lose(self, runner: RemoteRunner, error: Exception) -> None:
        """Replace a lost runner, unless it was never ready or was replaced too often."""
        if runner.is_leaving:
            self.let_go(runner)
            return
        lost = self.end_actor(runner)
        self.new["num_samples_dropped"] += sum(call.method == "sample" for call in lost)
        is_over = self._max_restarts != NO_LIMIT and runner.n_replaced >= self._max_restarts
        if is_over or not runner.was_ready:
            if runner.was_ready:
                error.add_note(f"fastmarl: it was replaced max_restarts={self._max_restarts} times in a row")
            self._give_up(runner, error)
            return
        runner.n_replaced += 1
        self.new["num_env_runner_restarts"] += 1
        self.replace(runner)

    def replace(self, runner: RemoteRunner) -> None:
        """Start the next incarnation of the runner, which continues from its last known state."""
        self.restart(runner, self._next_incarnation(runner.index), runner.state | self.env_steps_at(runner.t))

    def _give_up(self, runner: RemoteRunner, error: Exception) -> None:
        """Drop a runner without replacing it; the next sampling call raises the error."""
        self.let_go(runner)
        self.arrivals.add(Arrival(next(self._numbers), runner, error))

    def let_go(self, runner: RemoteRunner) -> list[Call]:
        """Terminate a runner permanently and return its lost calls."""
        runner.is_lost = True
        return self.end_actor(runner)

    def end_actor(self, runner: RemoteRunner) -> list[Call]:
        """Terminate the actor of the runner and return its lost calls.

        Until another actor starts, the runner is neither ready nor lost and has no calls; see `recover()`.
        """
        runner.start = None
        lost = self.calls.remove_all_of(runner)
        for call in lost:
            call.fail(None)
        if runner.handle is not None:
            self.actors.kill(runner.handle)
        return lost

    def close(self, runners: Sequence[RemoteRunner]) -> list[Call]:
        """Close all envs, wait briefly, and terminate the runners. Return the calls, some of which may have errors."""
        calls: list[Call] = []
        end = monotonic() + CLOSE_TIMEOUT_S
        try:
            for runner in runners:
                runner.is_leaving = True
            calls += [self.call(runner, "stop") for runner in runners if runner.is_ready]
            while any(call.is_open for call in calls) and monotonic() < end:
                self.collect()
        finally:
            for runner in runners:
                self.let_go(runner)
        return calls

    def end(self) -> None:
        """Terminate all runners immediately."""
        self.actors.close()
        for runner in self.runners:
            self.let_go(runner)

    def recover(self) -> None:
        """Repair state that an interrupt (KeyboardInterrupt) of an earlier call may have left incomplete."""
        self.arrivals.recount()
        for runner in self.runners:
            is_half_replaced = runner.start is None and not runner.is_lost and not self.calls.count_of(runner)
            if is_half_replaced:
                self.end_actor(runner)
                self.replace(runner)

    # New runners.

    def new_runner(self, index: int) -> RemoteRunner:
        return RemoteRunner(index, self._next_incarnation(index))

    def unused_incarnation(self, index: int) -> int:
        """Return the incarnation of the next runner with this index."""
        return self._incarnations.get(index, self._config.incarnation)

    def unused_incarnations(self) -> list[int]:
        """Return `unused_incarnation()` of every index ever used."""
        return [self.unused_incarnation(index) for index in range(1 + max(self._incarnations))]

    def _next_incarnation(self, index: int) -> int:
        number = self.unused_incarnation(index)
        self.mark_used(index, number)
        return number

    def mark_used(self, index: int, incarnation: int) -> None:
        """Keep later runners with this index from reusing incarnations up to this one, whose seeds were used."""
        self._incarnations[index] = max(self.unused_incarnation(index), incarnation + 1)

    @property
    def num_in_config(self) -> int:
        """`num_env_runners` in the config of the next runner to start."""
        own = self._config.num_env_runners
        return self.num_configured if own == 1 else own

    def env_steps_at(self, t: int, runner: RemoteRunner | None = None) -> dict[str, int]:
        """Return the state component that makes schedules of a runner (by default the next one) continue at `t`."""
        return {ENV_STEPS: t // (self.num_in_config if runner is None else runner.num_env_runners)}

    def restart(self, runner: RemoteRunner, incarnation: int, state: dict[str, Any]) -> Call:
        """Start a successor of a runner that has exited."""
        runner.is_lost = False
        runner.incarnation = incarnation
        self.mark_used(runner.index, incarnation)
        return self.start(runner, state)

    def start(self, runner: RemoteRunner, state: dict[str, Any], *, is_module_wanted: bool = False) -> Call:
        """Start an actor that creates the runner and sets this state."""
        runner.num_env_runners = self.num_in_config
        config = replace(
            self._config,
            worker_index=self._config.worker_index + 1 + runner.index,
            incarnation=runner.incarnation,
            num_env_runners=runner.num_env_runners,
            num_threads=self._config.num_threads or max(1, usable_cores() // runner.num_env_runners),
        )
        runner.start, runner.sent_seq_no = None, NOTHING_SENT
        runner.handle = self.actors.start()
        plan = RunnerPlan(config, self._make_batch, state, is_module_wanted)
        return self.call(runner, "start", plan, timeout_s=self._start_timeout_s)

    def wait_for_starts(self, runners: Sequence[RemoteRunner]) -> None:
        """Wait until all of these runners can be called.

        Raises:
            Exception: The error of the first runner that cannot start; later calls do not raise it again.
        """
        while any(runner.start is None and not runner.is_lost for runner in runners):
            self.collect()
        for runner in runners:
            if runner.is_lost and (error := self.arrivals.take_error(runner)):
                raise error


def raise_first(calls: Iterable[Call]) -> None:
    for call in calls:
        if call.error is not None:
            raise call.error

"""Pending calls with their deadlines, and results received but not returned yet."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from fastmarl.distributed.host import HostReport
from fastmarl.distributed.runners import RemoteRunner

OVERDUE_CHECKED_EVERY_S = 1.0
Wait = Callable[[Sequence[Any], int, float], Sequence[Any]]


@dataclass(eq=False, slots=True)
class Call:
    """A call of a method of a runner host.

    Attributes:
        number: Consecutive number of the call, over all runners.
        runner: The runner being called.
        method: Name of the method.
        timeout_s: Time limit of the call in seconds, measured from the end of the previous call of the runner.
        reference: Reference to the result.
        is_open: True if neither the result nor an error has arrived.
        is_done: True if `value` is the result.
        error: The error raised by the call, if any. A closed call with neither a value nor an error is lost.
    """

    number: int
    runner: Any
    method: str
    timeout_s: float
    reference: Hashable
    is_open: bool = True
    is_done: bool = False
    value: Any = None
    error: Exception | None = None

    def finish(self, value: Any) -> None:
        self.is_open, self.is_done, self.value = False, True, value

    def fail(self, error: Exception | None) -> None:
        """Close the call with an error; None means that it is lost."""
        self.is_open, self.error = False, error


class CallsInFlight:
    """All calls whose results have not been taken.

    Only `calls()`, `ready()`, `restart_timeouts()` and `overdue()` iterate over all runners. An interrupt at any line
    leaves the object consistent.

    Args:
        wait: `(references, num_returns, timeout_s) -> ready references`, like `ray.wait()`.
    """

    def __init__(self, wait: Wait):
        self._wait = wait
        self._of_runner: dict[Any, dict[Call, None]] = {}  # oldest first
        self._since: dict[Any, float] = {}  # runner -> start time of its oldest call
        self._checked_at = monotonic()

    def add(self, call: Call) -> None:
        """Add a new call."""
        own = self._of_runner.get(call.runner)
        if not own:
            self._since[call.runner] = monotonic()
            own = self._of_runner[call.runner] = {}
        own[call] = None

    def remove(self, call: Call) -> None:
        """Remove a call whose result was taken; the time limit of the runner's next call starts now."""
        self._since[call.runner] = monotonic()
        del self._of_runner[call.runner][call]

    def remove_all_of(self, runner: Any) -> list[Call]:
        """Remove and return all calls of a lost runner."""
        own = self._of_runner.pop(runner, {})
        self._since.pop(runner, None)
        return list(own)

    def calls(self) -> list[Call]:
        """Return all calls in the order in which they were made."""
        return sorted((call for own in self._of_runner.values() for call in own), key=_number_of)

    def count_of(self, runner: Any) -> int:
        return len(self._of_runner.get(runner, ()))

    def ready(self, timeout_s: float) -> list[Call]:
        """Return the calls whose results have arrived, in the order in which they were made.

        If there are none, wait for at most `timeout_s` seconds.
        """
        calls = {call.reference: call for call in self.calls()}
        if not calls:
            return []
        references = list(calls)
        found: Iterable[Any] = self._wait(references, len(references), 0.0)
        if not found and timeout_s > 0 and self._wait(references, 1, timeout_s):
            found = self._wait(references, len(references), 0.0)
        return sorted((calls[each] for each in found), key=_number_of)

    def restart_timeouts(self, method: str, timeout_s: float) -> None:
        """Restart the timeouts of all calls of this method, with a new limit."""
        for runner, own in self._of_runner.items():
            for call in own:
                if call.method == method:
                    self._since[runner], call.timeout_s = monotonic(), timeout_s

    def overdue(self, is_idle: bool) -> list[Call]:
        """Return the oldest call of each timed-out runner. Unless `is_idle`, check at most once per second."""
        now = monotonic()
        if not is_idle and now - self._checked_at < OVERDUE_CHECKED_EVERY_S:
            return []
        self._checked_at = now
        oldest = [next(iter(own)) for own in self._of_runner.values() if own]
        return [call for call in oldest if now - self._since[call.runner] > call.timeout_s]


def _number_of(call: Call) -> int:
    return call.number


@dataclass(frozen=True, eq=False)
class Arrival:
    """The result of a call of `sample()`, or the reason why a runner is lost.

    Attributes:
        number: Number of the call.
        runner: The called runner.
        came: The report with the batch, or an error.
    """

    number: int
    runner: RemoteRunner
    came: HostReport | Exception


class Arrivals:
    """A queue of arrivals that counts them per runner."""

    def __init__(self) -> None:
        self._queue: deque[Arrival] = deque()
        self._counts: Counter[RemoteRunner] = Counter()

    def __len__(self) -> int:
        return len(self._queue)

    def count_of(self, runner: RemoteRunner) -> int:
        return self._counts[runner]

    def add(self, arrival: Arrival) -> None:
        self._counts[arrival.runner] += 1
        self._queue.append(arrival)

    def take(self, is_wanted: Callable[[Arrival], bool] = lambda arrival: True) -> Arrival | None:
        """Remove and return the oldest arrival accepted by `is_wanted`, or None."""
        found = next(filter(is_wanted, self._queue), None)
        if found is not None:
            self._queue.remove(found)
            self._counts[found.runner] -= 1
        return found

    def take_error(self, runner: RemoteRunner | None = None) -> Exception | None:
        """Remove and return the oldest error of `runner` (by default of any runner), or None if there is none."""
        found = self.take(lambda each: isinstance(each.came, Exception) and runner in (None, each.runner))
        return None if found is None else found.came  # type: ignore[return-value]

    def take_batches(self) -> list[tuple[RemoteRunner, HostReport]]:
        """Remove all arrivals and return the batches in the order of their calls; errors are discarded."""
        queue = sorted(self._queue, key=lambda each: each.number)
        self._queue.clear()
        self._counts.clear()
        return [(each.runner, each.came) for each in queue if isinstance(each.came, HostReport)]

    def recount(self) -> None:
        """Restore the counts after an interrupt, which may have happened between an arrival and its count."""
        self._counts = Counter(each.runner for each in self._queue)

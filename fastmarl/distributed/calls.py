"""Calls under way, and which runner has answered, or has not for too long."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

OVERDUE_CHECKED_EVERY_S = 1.0
Wait = Callable[[Sequence[Any], int, float], Sequence[Any]]


@dataclass(eq=False, slots=True)
class Call:
    """One call of a runner.

    Attributes:
        number: calls are numbered as they are made, over all runners.
        runner: of whom.
        method: of its host.
        timeout_s: seconds that the runner has for it, from the end of its call before.
        reference: by which its result is known.
        is_open: whether neither the result nor an error has come.
        is_done: whether `value` is the result.
        error: what was raised there, if anything. A call that is neither open nor done and has no error is lost.
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
        """None: it is lost."""
        self.is_open, self.error = False, error


class CallsInFlight:
    """All calls whose results have not been taken. Only `calls()`, `ready()`, `wait_anew()` and `overdue()` look at
    more than one runner's. An interrupt at any line leaves it whole.

    Args:
        wait: `(references, num_returns, timeout_s) -> those that are ready`, as of `ray.wait()`.
    """

    def __init__(self, wait: Wait):
        self._wait = wait
        self._of_runner: dict[Any, dict[Call, None]] = {}  # oldest first
        self._since: dict[Any, float] = {}  # by runner, when its oldest call began to be waited for
        self._checked_at = monotonic()

    def add(self, call: Call) -> None:
        """A call was made."""
        own = self._of_runner.get(call.runner)
        if not own:
            self._since[call.runner] = monotonic()
            own = self._of_runner[call.runner] = {}
        own[call] = None

    def remove(self, call: Call) -> None:
        """Its result was taken: the runner's next call is waited for from now on."""
        self._since[call.runner] = monotonic()
        del self._of_runner[call.runner][call]

    def remove_all_of(self, runner: Any) -> list[Call]:
        """The runner is lost, and these calls with it."""
        own = self._of_runner.pop(runner, {})
        self._since.pop(runner, None)
        return list(own)

    def calls(self) -> list[Call]:
        """In the order in which they were made."""
        return sorted((call for own in self._of_runner.values() for call in own), key=_number_of)

    def count_of(self, runner: Any) -> int:
        return len(self._of_runner.get(runner, ()))

    def ready(self, timeout_s: float) -> list[Call]:
        """Return the calls whose results are there, in the order in which they were made.

        If there are none, it waits `timeout_s` seconds at most."""
        calls = {call.reference: call for call in self.calls()}
        if not calls:
            return []
        references = list(calls)
        found: Iterable[Any] = self._wait(references, len(references), 0.0)
        if not found and timeout_s > 0 and self._wait(references, 1, timeout_s):
            found = self._wait(references, len(references), 0.0)
        return sorted((calls[each] for each in found), key=_number_of)

    def wait_anew(self, method: str, timeout_s: float) -> None:
        """Runners that have calls of this method before them have so long for each, from now on."""
        for runner, own in self._of_runner.items():
            for call in own:
                if call.method == method:
                    self._since[runner], call.timeout_s = monotonic(), timeout_s

    def overdue(self, is_idle: bool) -> list[Call]:
        """The oldest calls of runners that have taken too long for them. Looks if there is time for that, and once a
        second; else there are none."""
        now = monotonic()
        if not is_idle and now - self._checked_at < OVERDUE_CHECKED_EVERY_S:
            return []
        self._checked_at = now
        oldest = [next(iter(own)) for own in self._of_runner.values() if own]
        return [call for call in oldest if now - self._since[call.runner] > call.timeout_s]


def _number_of(call: Call) -> int:
    return call.number

"""Which call a reference is of, and which runner has answered, or has not for too long."""

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
        is_open: whether neither the result nor an error has come.
        is_done: whether `value` is the result.
        error: what was raised there, if anything. A call that is neither open nor done and has no error is lost.
    """

    number: int
    runner: Any
    method: str
    timeout_s: float
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
    """All calls whose results have not been taken. No operation but `ready()`, `overdue()` and `forget_unfinished()`
    looks at more than one runner's.

    Args:
        wait: `(references, num_returns, timeout_s) -> those that are ready`, as of `ray.wait()`.
    """

    def __init__(self, wait: Wait):
        self._wait = wait
        self._calls: dict[Hashable, Call] = {}
        self._of_runner: dict[Any, dict[Hashable, Call]] = {}  # oldest first
        self._since: dict[Any, float] = {}  # by runner, when its oldest call began to be waited for
        self._checked_at = monotonic()

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, reference: Hashable) -> bool:
        return reference in self._calls

    def add(self, reference: Hashable, call: Call) -> None:
        """A call was made."""
        own = self._of_runner.setdefault(call.runner, {})
        if not own:
            self._since[call.runner] = monotonic()
        own[reference] = self._calls[reference] = call

    def remove(self, reference: Hashable) -> Call:
        """Its result was taken: the runner's next call is waited for from now on."""
        call = self._calls.pop(reference)
        own = self._of_runner[call.runner]
        del own[reference]
        if own:
            self._since[call.runner] = monotonic()
        else:
            del self._of_runner[call.runner], self._since[call.runner]
        return call

    def remove_all_of(self, runner: Any) -> list[Call]:
        """The runner is lost, and these calls with it."""
        own = self._of_runner.get(runner, {})
        for reference in own:
            self._calls.pop(reference, None)  # it is not there if an interrupt came while it was added or removed
        self._of_runner.pop(runner, None)
        self._since.pop(runner, None)
        return list(own.values())

    def forget_unfinished(self) -> None:
        """Those that were being added or removed when an interrupt came: one of the dicts has them and one doesn't."""
        for runner, own in list(self._of_runner.items()):
            self._of_runner[runner] = {each: call for each, call in own.items() if each in self._calls}
            if not self._of_runner[runner]:
                del self._of_runner[runner]
        known = {reference for own in self._of_runner.values() for reference in own}
        self._calls = {reference: call for reference, call in self._calls.items() if reference in known}
        self._since = {runner: self._since.get(runner, monotonic()) for runner in self._of_runner}

    def calls(self) -> list[Call]:
        """In the order in which they were made."""
        return list(self._calls.values())

    def count_of(self, runner: Any) -> int:
        return len(self._of_runner.get(runner, ()))

    def ready(self, timeout_s: float) -> list[tuple[Any, Call]]:
        """(reference, call) of all whose results are there, in order of the calls; waits if there are none."""
        if not self._calls:
            return []
        references = list(self._calls)
        found: Iterable[Any] = self._wait(references, len(references), 0.0)
        if not found and timeout_s > 0 and self._wait(references, 1, timeout_s):
            found = self._wait(references, len(references), 0.0)
        return sorted(((each, self._calls[each]) for each in found), key=lambda pair: pair[1].number)

    def overdue(self) -> list[Any]:
        """Runners that have taken too long for their oldest call. Looks once a second, else there are none."""
        now = monotonic()
        if now - self._checked_at < OVERDUE_CHECKED_EVERY_S:
            return []
        self._checked_at = now
        return [runner for runner, since in self._since.items() if now - since > self.oldest_of(runner)[1].timeout_s]

    def oldest_of(self, runner: Any) -> tuple[Any, Call]:
        """(reference, call)"""
        return next(iter(self._of_runner[runner].items()))

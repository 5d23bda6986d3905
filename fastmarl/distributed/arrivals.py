"""Batches and errors that have arrived but were not returned yet."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from fastmarl.distributed.host import HostReport
from fastmarl.distributed.runners import RemoteRunner


@dataclass(frozen=True, eq=False)
class Arrival:
    """The result of a call of `sample()`, or the reason why a runner is lost.

    Attributes:
        number: Number of the call.
        runner: The runner that was called.
        came: The report with the batch, or an error.
    """

    number: int
    runner: RemoteRunner
    came: HostReport | Exception


class Arrivals:
    """A queue of arrivals that knows how many it holds from each runner."""

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
        """Remove and return the oldest arrival that `is_wanted` accepts, or None."""
        found = next(filter(is_wanted, self._queue), None)
        if found is not None:
            self._queue.remove(found)
            self._counts[found.runner] -= 1
        return found

    def take_error(self, runner: RemoteRunner | None = None) -> Exception | None:
        """Remove and return the oldest error, of one runner or of any; None if there is none."""
        found = self.take(lambda each: isinstance(each.came, Exception) and runner in (None, each.runner))
        return None if found is None else found.came  # type: ignore[return-value]

    def take_batches(self) -> list[tuple[RemoteRunner, HostReport]]:
        """Remove all arrivals and return the batches in the order of their calls; errors are discarded."""
        queue = sorted(self._queue, key=lambda each: each.number)
        self._queue.clear()
        self._counts.clear()
        return [(each.runner, each.came) for each in queue if isinstance(each.came, HostReport)]

    def recount(self) -> None:
        """Restore the counts after an interrupt, which may have come between an arrival and its count."""
        self._counts = Counter(each.runner for each in self._queue)

"""Batches and errors that have come, and were not handed out."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from fastmarl.distributed.host import HostReport
from fastmarl.distributed.runners import RemoteRunner


@dataclass(frozen=True, eq=False)
class Arrival:
    """The result of a call of `sample()`, or the reason why a runner is lost.

    Attributes:
        number: of the call.
        runner: whose it is.
        came: the report with the batch, or an error.
    """

    number: int
    runner: RemoteRunner
    came: HostReport | Exception


class Arrivals:
    """A queue, which knows how many arrivals of each runner it has."""

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
        """The oldest one that is wanted."""
        found = next(filter(is_wanted, self._queue), None)
        if found is not None:
            self._queue.remove(found)
            self._counts[found.runner] -= 1
        return found

    def take_error(self, runner: RemoteRunner | None = None) -> Exception | None:
        """The oldest one, if any; of this runner only, if one is given."""
        found = self.take(lambda each: isinstance(each.came, Exception) and runner in (None, each.runner))
        return None if found is None else found.came  # type: ignore[return-value]

    def take_batches(self) -> list[tuple[RemoteRunner, HostReport]]:
        """All of them, in order of their calls; errors are forgotten."""
        queue = sorted(self._queue, key=lambda each: each.number)
        self._queue.clear()
        self._counts.clear()
        return [(each.runner, each.came) for each in queue if isinstance(each.came, HostReport)]

    def recount(self) -> None:
        """After an interrupt, which may have come between an arrival and its count."""
        self._counts = Counter(each.runner for each in self._queue)

"""Batches and errors that have come, and were not handed out."""

from collections import Counter, deque
from dataclasses import dataclass

from fastmarl.distributed.parts import SamplePart
from fastmarl.distributed.runners import RemoteRunner


@dataclass(frozen=True, eq=False)
class Arrival:
    """A batch that has come, and the number of its call."""

    number: int
    runner: RemoteRunner
    part: SamplePart


class Arrivals:
    """A queue of batches and errors, which knows how many batches of each runner it has."""

    def __init__(self) -> None:
        self._queue: deque[Arrival | Exception] = deque()
        self._counts: Counter[RemoteRunner] = Counter()

    def __len__(self) -> int:
        return len(self._queue)

    def count_of(self, runner: RemoteRunner) -> int:
        """Its batches."""
        return self._counts[runner]

    def add(self, arrived: Arrival | Exception) -> None:
        if isinstance(arrived, Arrival):
            self._counts[arrived.runner] += 1
        self._queue.append(arrived)

    def take_oldest(self) -> Arrival | Exception:
        oldest = self._queue.popleft()
        if isinstance(oldest, Arrival):
            self._counts[oldest.runner] -= 1
        return oldest

    def take_batches(self) -> list[Arrival]:
        """All of them, in order of their calls; errors are forgotten."""
        batches = [each for each in self._queue if isinstance(each, Arrival)]
        self._queue.clear()
        self._counts.clear()
        return sorted(batches, key=lambda each: each.number)

    def take_error(self) -> Exception | None:
        """The oldest one, if any."""
        for index, each in enumerate(self._queue):
            if isinstance(each, Exception):
                del self._queue[index]
                return each
        return None

    def forget(self, error: Exception | None) -> None:
        """What samples next does not raise it."""
        if error is not None and error in self._queue:
            self._queue.remove(error)

    def recount(self) -> None:
        """After an interrupt, which may have come between a batch and its count."""
        self._counts = Counter(each.runner for each in self._queue if isinstance(each, Arrival))

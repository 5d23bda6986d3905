"""Episodes that wait for the thread that writes them."""

from collections import deque
from dataclasses import dataclass, field
from threading import Condition, Event

from fastmarl.episodes.multi_agent import MultiAgentEpisode


@dataclass
class Batch:
    """Episodes of some calls, to be written at once.

    Attributes:
        calls: (episodes, how many rows each of them has, or a few more), in order.
        total_rows: of all.
        is_full: whether nothing more comes in.
        flushed: to be set when these and all before are in files that are whole; None: nobody waits for that.
    """

    calls: list[tuple[list[MultiAgentEpisode], list[int]]] = field(default_factory=list)
    total_rows: int = 0
    is_full: bool = False
    flushed: Event | None = None

    @property
    def episodes(self) -> list[MultiAgentEpisode]:
        return [episode for episodes, _ in self.calls for episode in episodes]

    @property
    def n_rows(self) -> list[int]:
        """Of each episode."""
        return [n for _, n_rows in self.calls for n in n_rows]


class Handover:
    """Between those who hand episodes over and the one thread that takes them, batch by batch.

    The thread sleeps until a batch is full. To wake it for each small call would cost more than to write that: its
    caches are cold, and it must wait for the interpreter's lock.

    Args:
        max_batches: full ones that may wait.
        enough_rows: that make a batch full.

    Attributes:
        enough_rows: may be changed.
    """

    def __init__(self, max_batches: int, enough_rows: int):
        self.enough_rows = enough_rows
        self._max_batches = max_batches
        self._batches: deque[Batch] = deque()  # all but the last are full
        self._condition = Condition()
        self._is_ending = self._is_shut = False

    def put(self, episodes: list[MultiAgentEpisode], timeout_s: float) -> bool:
        """False: there was no room, or nothing is taken any more."""
        n_rows = [episode.n_unbuilt_rows() or episode.agent_steps() for episode in episodes]
        with self._condition:
            if not self._condition.wait_for(self._has_room, timeout_s) or self._is_shut:
                return False
            batch = self._open_batch()
            batch.total_rows += sum(n_rows)
            batch.calls.append((episodes, n_rows))
            if batch.total_rows >= self.enough_rows:
                self._fill(batch)
            return True

    def flush(self) -> Event:
        """What was handed over so far is a full batch; returns its `flushed`."""
        with self._condition:
            batch = self._batches[-1] if self._batches else self._open_batch()
            batch.flushed = batch.flushed or Event()
            self._fill(batch)
            return batch.flushed

    def take(self, timeout_s: float) -> Batch | None:
        """The next batch, as far as it is full by then; None: that was all, and nothing can be handed over any more."""
        with self._condition:
            self._condition.wait_for(self._has_something_to_do, timeout_s)
            if self._batches:
                self._condition.notify_all()
                return self._batches.popleft()
            self._is_shut = self._is_shut or self._is_ending
            return None if self._is_shut else Batch()

    def end(self) -> None:
        """What was handed over is the last: `take()` no longer waits for more."""
        with self._condition:
            self._is_ending = True
            self._condition.notify_all()

    def shut(self) -> None:
        """Nothing is taken any more; what waits is forgotten."""
        with self._condition:
            self._is_shut = True
            self._batches.clear()
            self._condition.notify_all()

    def _open_batch(self) -> Batch:
        """The last batch, if it is not full, or another one."""
        if not self._batches or self._batches[-1].is_full:
            self._batches.append(Batch())
        return self._batches[-1]

    def _fill(self, batch: Batch) -> None:
        batch.is_full = True
        self._condition.notify_all()

    def _has_room(self) -> bool:
        n = len(self._batches)
        return self._is_shut or n < self._max_batches or not self._batches[-1].is_full

    def _has_something_to_do(self) -> bool:
        return self._is_ending or (bool(self._batches) and self._batches[0].is_full)

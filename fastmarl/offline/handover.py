"""Episodes that wait for the thread that writes them.

Interrupts (SIGINT) come in the main thread, which hands episodes over, at any line; never in the thread that writes. So
the former changes what both see in single steps, under a lock that compiled code releases, and waits by looking: an
interrupted `Condition` or `Event` would keep its own lock for ever.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import RLock

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.native._locked import locked

LOOKS_EVERY_S = 0.005


class Parcel:
    """Episodes that are written together, once, however often they are handed over.

    Attributes:
        episodes: nothing else refers to these objects.
        n_rows: how many rows each of them has, or a few more.
        is_taken: whether the thread has them.
    """

    def __init__(self, episodes: list[MultiAgentEpisode]):
        self.episodes = episodes
        self.n_rows = [episode.n_unbuilt_rows() or episode.agent_steps() for episode in episodes]
        self.is_taken = False


@dataclass(eq=False)
class WriteBatch:
    """Parcels to be written at once.

    Attributes:
        parcels: in order; one may be among them twice.
        total_rows: of all.
        is_full: whether nothing more comes in.
        is_flushed: whether these and all earlier parcels are in complete files; None: no caller waits for that.
    """

    parcels: list[Parcel] = field(default_factory=list)
    total_rows: int = 0
    is_full: bool = False
    is_flushed: bool | None = None

    @property
    def episodes(self) -> list[MultiAgentEpisode]:
        return [episode for parcel in self.parcels for episode in parcel.episodes]

    @property
    def n_rows(self) -> list[int]:
        """Of each episode."""
        return [n for parcel in self.parcels for n in parcel.n_rows]


class Handover:
    """Between those who hand parcels over and the one thread that takes them, batch by batch.

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
        self._batches: deque[WriteBatch] = deque()  # all but the last are full
        self._lock = RLock()
        self._news: SimpleQueue[None] = SimpleQueue()  # wakes the thread
        self._is_ending = self._is_shut = False

    def put(self, parcel: Parcel, timeout_s: float) -> bool:
        """Hand it over, unless an interrupted call has done so.

        False: there was no room, or nothing is taken any more.
        """
        return bool(wait_for(lambda: locked(self._lock, self._add, parcel), timeout_s))

    def flush(self) -> WriteBatch:
        """End the open batch and return it; its `is_flushed` tells when it is in files."""
        batch: WriteBatch = locked(self._lock, self._end_batch)
        return batch

    def take(self, timeout_s: float) -> WriteBatch | None:
        """The next batch, as far as it is full by then; None: that was all, and nothing can be handed over any more."""
        deadline = time.monotonic() + timeout_s
        while not self._has_something_to_do() and (left := deadline - time.monotonic()) > 0:
            try:
                self._news.get(timeout=left)
            except Empty:
                break
        with self._lock:
            if self._batches:
                batch = self._batches.popleft()
                batch.parcels = [parcel for parcel in dict.fromkeys(batch.parcels) if not parcel.is_taken]
                for parcel in batch.parcels:
                    parcel.is_taken = True
                return batch
            self._is_shut = self._is_shut or self._is_ending
            return None if self._is_shut else WriteBatch()

    def end(self) -> None:
        """What was handed over is the last: `take()` no longer waits for more."""
        self._is_ending = True
        self._news.put(None)

    def shut(self) -> None:
        """Nothing is taken any more; what waits is forgotten."""
        with self._lock:
            self._is_shut = True
            self._batches.clear()

    def _add(self, parcel: Parcel) -> bool | None:
        """Add the parcel to the last batch. False: nothing is taken any more; None: there is no room yet."""
        if parcel.is_taken:
            return True
        if self._is_shut:
            return False
        if len(self._batches) >= self._max_batches and self._batches[-1].is_full:
            return None
        batch = self._open_batch()
        batch.total_rows += sum(parcel.n_rows)
        batch.parcels.append(parcel)
        if batch.total_rows >= self.enough_rows:
            self._fill(batch)
        return True

    def _end_batch(self) -> WriteBatch:
        batch = self._batches[-1] if self._batches else self._open_batch()
        batch.is_flushed = batch.is_flushed or False
        self._fill(batch)
        return batch

    def _open_batch(self) -> WriteBatch:
        """The last batch, if it is not full, or another one."""
        if not self._batches or self._batches[-1].is_full:
            self._batches.append(WriteBatch())
        return self._batches[-1]

    def _fill(self, batch: WriteBatch) -> None:
        self._news.put(None)  # before the next line, which may not come: then the thread looks in vain
        batch.is_full = True

    def _has_something_to_do(self) -> bool:
        with self._lock:
            return self._is_ending or (bool(self._batches) and self._batches[0].is_full)


def wait_for(look: Callable[[], bool | None], timeout_s: float) -> bool | None:
    """Look now and then until that returns something, and return it; None: it took longer."""
    deadline = time.monotonic() + timeout_s
    while (seen := look()) is None and time.monotonic() < deadline:
        time.sleep(LOOKS_EVERY_S)
    return seen

"""The thread of a `ParquetWriter`, and the episodes that wait for it.

Interrupts (SIGINT) come in the main thread, which hands episodes over, at any line; never in the thread that writes. So
the former changes what both see under a lock that compiled code releases, and waits by looking: an interrupted
`Condition` or `Event` would keep its own lock for ever.
"""

import atexit
import os
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import RLock, Thread

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.native._locked import locked
from fastmarl.offline.parts import FileParts

FIRST_ROWS = 1_024  # are written at once, before it is known how large they are
MOST_ROWS, MOST_BYTES = 65_536, 32 * 1024 * 1024  # afterwards
IDLE_S = 60.0  # then fewer rows are written, too
LOOKS_EVERY_S = 0.005

_running: "set[WriterThread]" = set()  # at the interpreter's end they are waited for
os.register_at_fork(after_in_child=_running.clear)


class Parcel:
    """Episodes that are written together, once, however often they are handed over.

    A parcel without episodes asks for all parcels before it to be in complete files.

    Attributes:
        episodes: nothing else refers to these objects.
        n_rows: how many rows each of them has, or a few more.
        is_taken: whether the thread has them.
        is_written: whether it has written them.
    """

    def __init__(self, episodes: list[MultiAgentEpisode]):
        self.episodes = episodes
        self.n_rows = [episode.n_unbuilt_rows() or episode.agent_steps() for episode in episodes]
        self.total_rows = sum(self.n_rows)
        self.is_taken = self.is_written = False


class WriterThread(Thread):
    """Writes the parcels that are handed over.

    It sleeps until there are enough rows. To wake it for each small call would cost more than to write that: its caches
    are cold, and it must wait for the interpreter's lock.

    Args:
        parts: where to.
        max_queue_size: how many times as many rows may wait as are written at once.
        end_timeout_s: at the interpreter's end.

    Attributes:
        error: what has gone wrong; nothing is written after it.
        is_ending: whether `end()` was called.
        cpu_seconds: that it has taken.
    """

    def __init__(self, parts: FileParts, max_queue_size: int, end_timeout_s: float):
        super().__init__(name="fastmarl ParquetWriter", daemon=True)
        self.end_timeout_s = end_timeout_s
        self._parts = parts
        self._max_queue_size, self._enough_rows = max_queue_size, FIRST_ROWS
        self._lock = RLock()
        self._waiting: deque[Parcel] = deque()
        self._n_rows = 0  # of these; after an interrupt it may be wrong until none waits
        self._news: SimpleQueue[None] = SimpleQueue()  # wakes the thread
        self._is_flushing = self._is_shut = self._is_done = False
        self.error: BaseException | None = None
        self.is_ending = False
        self.cpu_seconds = 0.0

    def start(self) -> None:
        _running.add(self)
        try:
            super().start()
        except BaseException:
            _running.discard(self)
            raise

    def put(self, parcel: Parcel, timeout_s: float) -> bool:
        """Hand it over, unless an interrupted call has done so.

        False: there was no room, or the thread has failed or ended.
        """
        return bool(wait_for(lambda: locked(self._lock, self._add, parcel), timeout_s))

    def flush(self, timeout_s: float) -> bool:
        """False: it took longer, or the thread has failed."""
        request = Parcel([])
        locked(self._lock, self._add, request)
        return bool(wait_for(lambda: request.is_written or self._is_done or None, timeout_s)) and self.error is None

    def end(self, timeout_s: float) -> bool:
        """Write what is left, and end. False: it took longer."""
        self.begin_end()
        # Not join() alone: where an interrupt ends it, Python 3.11 takes the thread for ended, which still writes.
        if not wait_for(lambda: self._is_done or None, timeout_s):
            return False
        self.join(timeout_s)
        return True

    def begin_end(self) -> None:
        """Write what is left, and end, without a wait for it."""
        self.is_ending = True
        self._news.put(None)

    def run(self) -> None:
        try:
            while (parcels := self.take(IDLE_S)) is not None:
                self._write(parcels)
            self._parts.finish()
        except BaseException as error:
            self.error = error
            with self._lock:
                self._is_shut = True
                self._waiting.clear()  # the episodes' memory is free at once
            self._parts.abandon()
        finally:
            self.cpu_seconds = time.thread_time()
            self._is_done = True
            _running.discard(self)

    def take(self, timeout_s: float) -> list[Parcel] | None:
        """Return the parcels that are due, or that have come after `timeout_s` seconds; None: there are no more, and
        no more can be handed over."""
        deadline = time.monotonic() + timeout_s
        while not self._is_due() and (left := deadline - time.monotonic()) > 0:
            try:
                self._news.get(timeout=left)
            except Empty:
                break
        taken: list[Parcel] = []
        with self._lock:
            if not self._waiting and self.is_ending:
                self._is_shut = True
                return None
            n_rows = 0
            while self._waiting and n_rows < self._enough_rows and (not taken or taken[-1].episodes):
                parcel = self._waiting.popleft()
                n_rows += parcel.total_rows
                if not parcel.is_taken:
                    taken.append(parcel)
                parcel.is_taken = True
            self._n_rows = self._n_rows - n_rows if self._waiting else 0
            self._is_flushing = self._is_flushing and bool(self._waiting)
        return taken

    def _add(self, parcel: Parcel) -> bool | None:
        """Add the parcel to those that wait. False: nothing is taken any more; None: there is no room yet."""
        if parcel.is_taken:
            return True
        if self._is_shut:
            return False
        if parcel.episodes and self._n_rows >= self._max_queue_size * self._enough_rows:
            return None
        self._waiting.append(parcel)
        self._n_rows += parcel.total_rows
        self._is_flushing = self._is_flushing or not parcel.episodes
        if self._is_due():
            self._news.put(None)
        return True

    def _is_due(self) -> bool:
        return self.is_ending or self._is_flushing or self._n_rows >= self._enough_rows

    def _write(self, parcels: list[Parcel]) -> None:
        if episodes := [episode for parcel in parcels for episode in parcel.episodes]:
            self._parts.add(episodes, [n for parcel in parcels for n in parcel.n_rows])
            self._enough_rows = max(1, int(min(MOST_ROWS, MOST_BYTES / max(1.0, self._parts.row_bytes))))
        if parcels and not parcels[-1].episodes:
            self._parts.finish()
        self.cpu_seconds = time.thread_time()
        for parcel in parcels:
            parcel.is_written = True


def wait_for(look: Callable[[], bool | None], timeout_s: float) -> bool | None:
    """Look now and then until that returns something, and return it; None: it took longer."""
    deadline = time.monotonic() + timeout_s
    while (seen := look()) is None and time.monotonic() < deadline:
        time.sleep(LOOKS_EVERY_S)
    return seen


@atexit.register
def _end_all() -> None:
    for thread in list(_running):
        thread.end(thread.end_timeout_s)

"""The background thread of a `ParquetWriter`, and its queue of episodes.

SIGINT may interrupt the main thread, which queues episodes, at any line, but never the writer thread. Therefore, the
main thread changes shared data under a lock that compiled code releases, and waits by polling: an interrupted
`Condition` or `Event` would keep its lock forever.
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

FIRST_ROWS = 1_024  # per batch, until the size of rows is known
MOST_ROWS, MOST_BYTES = 65_536, 32 * 1024 * 1024  # per batch, afterwards
IDLE_S = 60.0  # after this time, smaller batches are also written
LOOKS_EVERY_S = 0.005

_running: "set[WriterThread]" = set()  # interpreter exit waits for them
os.register_at_fork(after_in_child=_running.clear)


class Parcel:
    """Episodes written together, and only once, even if queued repeatedly.

    An empty parcel is a request to complete the files of all earlier parcels.

    Attributes:
        episodes: Episodes that only the writer references.
        n_rows: Upper estimate of the number of rows of each episode.
        is_taken: True if the thread has taken them.
        is_written: True if the thread has written them.
    """

    def __init__(self, episodes: list[MultiAgentEpisode]):
        self.episodes = episodes
        self.n_rows = [episode.n_unbuilt_rows() or episode.agent_steps() for episode in episodes]
        self.total_rows = sum(self.n_rows)
        self.is_taken = self.is_written = False


class WriterThread(Thread):
    """Writes the queued parcels.

    It sleeps until enough rows are waiting. Waking it for each small call would cost more than the writing, because of
    cold caches and the wait for the GIL.

    Args:
        parts: The parts to write to.
        max_queue_size: Maximum number of waiting batches of rows.
        end_timeout_s: Seconds to wait for the thread when the interpreter exits.

    Attributes:
        error: The error that stopped the thread; nothing is written after it.
        is_ending: True once `end()` or `begin_end()` has been called.
        cpu_seconds: CPU time used.
    """

    def __init__(self, parts: FileParts, max_queue_size: int, end_timeout_s: float):
        super().__init__(name="fastmarl ParquetWriter", daemon=True)
        self.end_timeout_s = end_timeout_s
        self._parts = parts
        self._max_queue_size, self._enough_rows = max_queue_size, FIRST_ROWS
        self._lock = RLock()
        self._waiting: deque[Parcel] = deque()
        self._n_rows = 0  # in `_waiting`; may be wrong after an interrupt until the queue is empty
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
        """Queue the parcel, unless an interrupted call has already queued it.

        Returns:
            False if there was no room, or if the thread has failed or stopped.
        """
        return bool(wait_for(lambda: locked(self._lock, self._add, parcel), timeout_s))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued parcels are in complete files; return False after the timeout or a failure."""
        request = Parcel([])
        locked(self._lock, self._add, request)
        return bool(wait_for(lambda: request.is_written or self._is_done or None, timeout_s)) and self.error is None

    def end(self, timeout_s: float) -> bool:
        """Write the queued parcels and stop the thread; return False after the timeout."""
        self.begin_end()
        # Do not use join() alone: if it is interrupted, Python 3.11 treats a thread that is still writing as ended.
        if not wait_for(lambda: self._is_done or None, timeout_s):
            return False
        self.join(timeout_s)
        return True

    def begin_end(self) -> None:
        """Ask the thread to write the queued parcels and stop, without waiting for it."""
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
                self._waiting.clear()  # frees episode memory immediately
            self._parts.abandon()
        finally:
            self.cpu_seconds = time.thread_time()
            self._is_done = True
            _running.discard(self)

    def take(self, timeout_s: float) -> list[Parcel] | None:
        """Return the parcels that are due or, after `timeout_s` seconds, all waiting ones; None if the queue is closed.

        After None, no more parcels are accepted.
        """
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
        """Queue a parcel; return False if the queue is closed, and None if it is full."""
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
    """Call `look` repeatedly until it returns a value, and return that value, or None after the timeout."""
    deadline = time.monotonic() + timeout_s
    while (seen := look()) is None and time.monotonic() < deadline:
        time.sleep(LOOKS_EVERY_S)
    return seen


@atexit.register
def _end_all() -> None:
    for thread in list(_running):
        thread.end(thread.end_timeout_s)

"""The thread of a `ParquetWriter`."""

import atexit
import os
import time
from threading import Thread

from fastmarl.offline.handover import Handover, Parcel, WriteBatch, wait_for
from fastmarl.offline.parts import FileParts

FIRST_ROWS = 1_024  # are written at once, before it is known how large they are
MOST_ROWS, MOST_BYTES = 65_536, 32 * 1024 * 1024  # afterwards
IDLE_S = 60.0  # then fewer rows are written, too

_running: "set[WriterThread]" = set()  # at the interpreter's end they are waited for
os.register_at_fork(after_in_child=_running.clear)


class WriterThread(Thread):
    """Writes what is handed over.

    Args:
        parts: where to.
        max_queue_size: full batches that may wait.
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
        self._handover = Handover(max_queue_size, FIRST_ROWS)
        self._is_done = False
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
        """False: there was no room, or the thread has failed or ended."""
        return self._handover.put(parcel, timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """False: it took longer, or the thread has failed."""
        batch = self._handover.flush()
        return bool(wait_for(lambda: batch.is_flushed or self._is_done or None, timeout_s)) and self.error is None

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
        self._handover.end()

    def run(self) -> None:
        try:
            while (batch := self._handover.take(IDLE_S)) is not None:
                self._write(batch)
            self._parts.finish()
        except BaseException as error:
            self.error = error
            self._handover.shut()  # the episodes' memory is free at once
            self._parts.abandon()
        finally:
            self.cpu_seconds = time.thread_time()
            self._is_done = True
            _running.discard(self)

    def _write(self, batch: WriteBatch) -> None:
        if batch.parcels:
            self._parts.add(batch.episodes, batch.n_rows)
            self._handover.enough_rows = max(1, int(min(MOST_ROWS, MOST_BYTES / max(1.0, self._parts.row_bytes))))
        if batch.is_flushed is not None:
            self._parts.finish()
        self.cpu_seconds = time.thread_time()
        batch.is_flushed = True


@atexit.register
def _end_all() -> None:
    for thread in list(_running):
        thread.end(thread.end_timeout_s)

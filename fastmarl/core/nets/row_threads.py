"""Threads for compiled code; results do not depend on their number."""

from threading import Thread
from types import TracebackType

from fastmarl.core.native._block_threads import BlockThreads


class RowThreads:
    """Threads that compute blocks of rows in compiled code. A context manager; threads start on first use.

    They fetch blocks without the GIL, since passing a block to a Python thread takes as long as computing 500 rows of a
    small network.

    Args:
        n: Number of threads, including the calling one.

    Attributes:
        n: Number of threads, including the calling one.
        is_open: True within the `with` block.
    """

    def __init__(self, n: int):
        self.n = n
        self.is_open = False
        self._shared: BlockThreads | None = None
        self._threads: list[Thread] = []

    def __enter__(self) -> "RowThreads":
        self._end()  # stops threads left over after an interrupt
        self.is_open = True
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.is_open = False
        self._end()

    def _end(self) -> None:
        if self._shared is not None:
            self._shared.end()
            for thread in self._threads:
                thread.join()
            self._shared = None

    def started(self) -> BlockThreads:
        """Start the threads if needed; return their shared state."""
        if self._shared is None:
            self._threads, self._shared = [], BlockThreads(self.n)
            for number in range(1, self.n):
                thread = Thread(target=self._shared.jobs.serve, args=(number,), name="fastmarl-rows", daemon=True)
                thread.start()
                self._threads.append(thread)
        return self._shared


ALONE = RowThreads(1)  # the calling thread

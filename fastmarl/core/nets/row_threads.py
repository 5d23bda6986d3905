"""Threads for compiled code, whose results do not depend on the number of threads."""

from threading import Thread
from types import TracebackType

from fastmarl.core.native._block_threads import BlockThreads


class RowThreads:
    """Threads for compiled code that computes blocks of rows; used as a context manager, and started on first use.

    They fetch blocks without the GIL, since passing a block to a Python thread takes as long as 500 rows of a small
    network.

    Args:
        n: Number of threads, including the calling one.

    Attributes:
        n: Number of threads within the `with` block.
        is_open: True within the `with` block.
    """

    def __init__(self, n: int):
        self.n = n
        self.is_open = False
        self._shared: BlockThreads | None = None
        self._threads: list[Thread] = []

    def __enter__(self) -> "RowThreads":
        self._end()  # if an interrupt has left threads; otherwise they end when this object is gone
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
        """Return the state shared by the threads, after starting them if needed."""
        if self._shared is None:
            self._threads, self._shared = [], BlockThreads(self.n)
            for number in range(1, self.n):
                thread = Thread(target=self._shared.jobs.serve, args=(number,), name="fastmarl-rows", daemon=True)
                thread.start()
                self._threads.append(thread)
        return self._shared


ALONE = RowThreads(1)  # the calling thread

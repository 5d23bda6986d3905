"""Threads for a computation in parts, whose result does not depend on their number."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the number of cores that this process may use: by its affinity, and by the limit of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (CGROUPS / "cpu.max").read_text().split()
    except (OSError, ValueError):  # no cgroups, or those of version 1
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


class WorkerThreads:
    """Runs the parts of a computation that releases the GIL; other threads live until the end of the block.

    Args:
        n: Number of threads, with the caller's own.
    """

    def __init__(self, n: int):
        self._n = n
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> "WorkerThreads":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def run(self, part: Callable[[int], Any], n_parts: int) -> list[Any]:
        """Return part(0), part(1), ... in order. If one raises an error, others may still run until the block ends."""
        if min(self._n, n_parts) < 2:
            return [part(k) for k in range(n_parts)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._n - 1, thread_name_prefix="fastmarl-part")
        tasks = [self._pool.submit(part, k) for k in range(n_parts)]
        # The others take parts from the first one on, this thread from the last one on: those that it can cancel.
        own = {k: part(k) for k in reversed(range(n_parts)) if tasks[k].cancel()}
        return [own[k] if k in own else tasks[k].result() for k in range(n_parts)]

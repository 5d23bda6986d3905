"""A ring of reusable memory; memory returns to it when the last array using it is freed."""

from collections import deque
from typing import Any

import numpy as np

from fastmarl.core.native._lease import Lease

KEPT_MEMORIES = 4  # maximum number of idle `Memory` objects; beyond it, the oldest are freed
MUCH_LARGER = 8  # idle memory more than this many times larger than requested is left for larger requests


class Memory:
    """Arrays indexed by key, lent to one borrower at a time.

    Attributes:
        size: Capacity in a unit chosen by the borrower, such as rows or bytes.
        final_size: Capacity for a second kind of rows.
        n_touched: Largest total of rows of both kinds ever written; the system allocates no pages for the rest.
    """

    def __init__(self, size: int, final_size: int):
        self.arrays: dict[Any, np.ndarray] = {}
        self.size = size
        self.final_size = final_size
        self.n_touched = 0


class LeasedArray:
    """Keeps a lease alive as long as any view of the array made from this object (see `numpy.ndarray.base`)."""

    __slots__ = ("_lease", "_memory")

    def __init__(self, memory: np.ndarray, lease: Lease):
        self._memory = memory
        self._lease = lease

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__  # created on demand, as keeping a dict per array would cost memory


class MemoryRing:
    """Lends idle `Memory` objects first in, first out; allocates a new one if none has a suitable size."""

    def __init__(self) -> None:
        self._idle: deque[Memory] = deque(maxlen=KEPT_MEMORIES)

    def lend(self, size: int, final_size: int = 0) -> tuple[Memory, Lease]:
        """Return a `Memory` with a capacity of at least `size`, and its lease."""
        memory = self._take(size) or Memory(_rounded(size), _rounded(final_size))
        memory.final_size = max(memory.final_size, final_size)
        return memory, Lease(memory, self._idle)

    def _take(self, size: int) -> Memory | None:
        """Remove and return the first idle memory of suitable size, or None; borrowers may return others meanwhile."""
        for _ in range(len(self._idle)):
            memory = self._idle.popleft()
            if size <= memory.size <= MUCH_LARGER * max(1, size):
                return memory
            self._idle.append(memory)
        return None


def _rounded(size: int) -> int:
    """Round up by at most an eighth, because the next borrower may need slightly more."""
    unit = 1 << max(0, size.bit_length() - 4)
    return -(-size // unit) * unit

"""A ring of reusable memory: it is lent, and comes back when the last array over it is freed."""

from collections import deque
from typing import Any

import numpy as np

from fastmarl.core.native._lease import Lease

KEPT_MEMORIES = 4  # idle ones; what a learner held for long and then dropped goes back to the system
MUCH_LARGER = 8  # times what is wanted: memory of that size is left to those who need it


class Memory:
    """Arrays by key, of one borrower after the other.

    Attributes:
        size: what there is room for, in units of its borrowers: rows, bytes.
        final_size: the same of what they count apart.
        n_touched: so much of both was ever written to; the system gives no pages for the rest.
    """

    def __init__(self, size: int, final_size: int):
        self.arrays: dict[Any, np.ndarray] = {}
        self.size = size
        self.final_size = final_size
        self.n_touched = 0


class LeasedArray:
    """NumPy keeps this object alive for as long as any view of the array made from it (see numpy's `.base`)."""

    __slots__ = ("_lease", "_memory")

    def __init__(self, memory: np.ndarray, lease: Lease):
        self._memory = memory
        self._lease = lease

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__  # made when it is asked for: a dict for each array would be large


class MemoryRing:
    """Lends memories first in, first out. Where all are held, it makes one more."""

    def __init__(self) -> None:
        self._idle: deque[Memory] = deque(maxlen=KEPT_MEMORIES)

    def lend(self, size: int, final_size: int = 0) -> tuple[Memory, Lease]:
        """Return a memory with room for at least `size`, and its lease."""
        memory = self._take(size) or Memory(_rounded(size), _rounded(final_size))
        memory.final_size = max(memory.final_size, final_size)
        return memory, Lease(memory, self._idle)

    def _take(self, size: int) -> Memory | None:
        """Take the memory that fits and came back first; more may come back meanwhile."""
        for _ in range(len(self._idle)):
            memory = self._idle.popleft()
            if size <= memory.size <= MUCH_LARGER * max(1, size):
                return memory
            self._idle.append(memory)
        return None


def _rounded(size: int) -> int:
    """Up to an eighth more: the next borrower may need a little more."""
    unit = 1 << max(0, size.bit_length() - 4)
    return -(-size // unit) * unit

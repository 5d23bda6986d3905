"""Memory for the columns of tables."""

import math
from typing import Any

import numpy as np

from fastmarl.core.native._lease import Lease
from fastmarl.core.store.memory import LeasedArray, MemoryRing

LEAST_BYTES = 64 * 1024  # of an array; smaller ones are NumPy's
MOST_BYTES = 64 * 1024 * 1024  # of a table, that are kept
ALIGNMENT = 64


class TableMemory:
    """Gives columns the memory of an earlier table, once nothing refers to that.

    Tables are many MiB, and seconds apart. Without this, each would get its pages from the system and give them back,
    which takes longer than to copy the rows into them.
    """

    def __init__(self) -> None:
        self._ring = MemoryRing()
        self._lease: Lease | None = None
        self._bytes = np.empty(0, np.uint8)
        self._n_given = self._n_asked_for = 0

    def begin_table(self) -> None:
        """What comes next is for another table. There is memory for one as large as the last."""
        self._lease = None  # the last table's memory comes back as soon as that is gone
        memory, self._lease = self._ring.lend(min(self._n_asked_for, MOST_BYTES))
        if not memory.arrays:
            memory.arrays["bytes"] = np.empty(memory.size, np.uint8)
        self._bytes = memory.arrays["bytes"]
        self._n_given = self._n_asked_for = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array like `numpy.empty()`'s, of new memory if the table's has no room left."""
        dtype = np.dtype(dtype)
        n_bytes = dtype.itemsize * math.prod(shape)
        if dtype.hasobject or n_bytes < LEAST_BYTES:
            return np.empty(shape, dtype)
        n_taken = -(-n_bytes // ALIGNMENT) * ALIGNMENT
        self._n_asked_for += n_taken
        if self._lease is None or self._n_given + n_taken > len(self._bytes):
            return np.empty(shape, dtype)
        place = self._bytes[self._n_given : self._n_given + n_bytes]
        self._n_given += n_taken
        return np.asarray(LeasedArray(place, self._lease)).view(dtype).reshape(shape)

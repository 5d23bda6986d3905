"""Reusable memory for gathered observations, which is large and expensive to allocate in each call."""

import math

import numpy as np

from fastmarl.core.native import _rllib_episodes as compiled
from fastmarl.core.store.memory import LeasedArray, MemoryRing

SMALL = 1 << 16  # bytes, up to which new memory costs no more than reused memory


class ColumnMemory:
    """Gathers rows into arrays whose memory is reused after the last view of them is freed."""

    def __init__(self) -> None:
        self._ring = MemoryRing()

    def gather(
        self,
        leaves: list[np.ndarray],
        final_leaves: list[np.ndarray],
        rows: np.ndarray,
        counts: np.ndarray,
        finals: np.ndarray,
    ) -> list[np.ndarray]:
        """Gather the rows of several lanes, lane by lane, each followed by the lane's final observation.

        Args:
            leaves, final_leaves: [capacity, *shape] each, in pairs of the same dtype.
            rows: int64 [n], the rows of all lanes, lane by lane.
            counts: int64 [lanes], number of rows of each lane.
            finals: int64 [lanes], number of each lane's final observation, or -1.

        Returns:
            [n + number of final observations, *shape] for each leaf.
        """
        n = len(rows) + int((finals >= 0).sum())
        arrays = self._arrays([((n, *leaf.shape[1:]), leaf.dtype) for leaf in leaves])
        return [
            compiled.with_finals(leaf, final_leaf, rows, counts, finals, out)
            for leaf, final_leaf, out in zip(leaves, final_leaves, arrays, strict=True)
        ]

    def _arrays(self, wanted: list[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
        """Return uninitialised arrays of these shapes and dtypes; arrays of objects don't use the pool."""
        n_bytes = [0 if dtype.hasobject else math.prod(shape) * dtype.itemsize for shape, dtype in wanted]
        if sum(n_bytes) < SMALL:
            return [np.empty(shape, dtype) for shape, dtype in wanted]
        memory, lease = self._ring.lend(sum(n_bytes))
        arrays = []
        for i, (shape, dtype) in enumerate(wanted):
            if dtype.hasobject:
                arrays.append(np.empty(shape, dtype))
                continue
            buffer = memory.arrays.get(i)
            if buffer is None or len(buffer) < n_bytes[i]:
                # A quarter more, in case the next call needs more.
                buffer = memory.arrays[i] = np.empty(n_bytes[i] + n_bytes[i] // 4, np.uint8)
                memory.size = sum(map(len, memory.arrays.values()))
            arrays.append(np.asarray(LeasedArray(buffer, lease))[: n_bytes[i]].view(dtype).reshape(shape))
        return arrays

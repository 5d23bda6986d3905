"""Memory for gathered observations: as large as all of a call, and dear to have anew."""

import math

import numpy as np

from fastmarl.core.native import _rllib_episodes as compiled
from fastmarl.core.store.memory import LeasedArray, MemoryRing

SMALL = 1 << 16  # bytes: up to here, new memory costs no more than used memory


class ColumnMemory:
    """Gathers into arrays whose memory is used again when no view of them is left."""

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
        """Rows of several lanes, lane by lane, each lane's final observation behind them.

        Args:
            leaves, final_leaves: [capacity, *shape] each, in pairs of the same dtype.
            rows: int64 [n], the lanes' rows one after the other.
            counts, finals: int64 [lanes], how many rows a lane has, and the place of its final observation or -1.

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
        """Uninitialized, of these shapes and dtypes; those of objects get memory of their own."""
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
                # The next call may need more.
                buffer = memory.arrays[i] = np.empty(n_bytes[i] + n_bytes[i] // 4, np.uint8)
                memory.size = sum(map(len, memory.arrays.values()))
            arrays.append(np.asarray(LeasedArray(buffer, lease))[: n_bytes[i]].view(dtype).reshape(shape))
        return arrays

"""Stores a policy's outputs in rows until batches are built from them."""

from collections.abc import Callable, Iterable, KeysView
from typing import Any

import numpy as np
from ray.rllib.policy.sample_batch import SampleBatch

ACTIONS = SampleBatch.ACTIONS
FIRST_CAPACITY = 1024


class OutputRows:
    """One policy's actions and other outputs, by column.

    Rows are numbered in order of arrival. When the memory is full, the rows still needed are compacted.

    Args:
        holders: Returns the holders of all rows still needed; each has `rows`, a list, and `pending`, a row or -1.

    Attributes:
        has_read_only_actions: True if RLlib would have made the arrays of actions read-only.
    """

    def __init__(self, holders: Callable[[], Iterable[Any]]):
        self._holders = holders
        self._columns: dict[str, np.ndarray] = {}
        self._used = 0
        self._capacity = 0
        self.has_read_only_actions = False

    @property
    def names(self) -> KeysView[str]:
        """Names of the columns in the order of the policy's outputs."""
        return self._columns.keys()

    def add(self, columns: dict[str, np.ndarray], n: int) -> int:
        """Add n rows, for which `fits()` is true, and return the number of the first."""
        if self._used + n > self._capacity:
            self._make_room(columns, n)
        first = self._used
        for name, memory in self._columns.items():
            memory[first : first + n] = columns[name]
        self._used = first + n
        return first

    def fits(self, columns: dict[str, np.ndarray], n: int) -> bool:
        """Return true if columns have n rows, and the same names, dtypes and shapes as before."""
        if self._columns and [*columns] != [*self._columns]:
            return False
        for name, values in columns.items():
            memory = self._columns.get(name, values)
            if values.dtype != memory.dtype or values.shape[1:] != memory.shape[1:] or len(values) != n:
                return False
        return True

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Copy these rows of a column; float64 is cast to float32, as in RLlib."""
        values = self._columns[name][rows]
        return values.astype(np.float32) if values.dtype == np.float64 else values

    def row(self, row: int) -> dict[str, Any]:
        """Copy one row of all columns."""
        columns = self._columns.items()
        values = {name: np.array(column[row]) if column.ndim > 1 else column[row] for name, column in columns}
        if self.has_read_only_actions and isinstance(values[ACTIONS], np.ndarray):
            values[ACTIONS].setflags(write=False)
        return values

    def _make_room(self, columns: dict[str, np.ndarray], n: int) -> None:
        if not self._columns:
            self._capacity = max(FIRST_CAPACITY, 2 * n)
            self._columns = {name: np.empty((self._capacity, *c.shape[1:]), c.dtype) for name, c in columns.items()}
            return
        holders = [*self._holders()]
        needed = [row for one in holders for row in (*one.rows, one.pending) if row >= 0]
        kept = np.unique(np.array(needed, np.intp))
        new_row = dict(zip(kept.tolist(), range(len(kept)), strict=True))
        new_row[-1] = -1
        self._capacity = max(FIRST_CAPACITY, self._capacity, 2 * (len(kept) + n))
        moved = {}
        for name, memory in self._columns.items():
            moved[name] = np.empty((self._capacity, *memory.shape[1:]), memory.dtype)
            moved[name][: len(kept)] = memory[kept]
        self._columns, self._used = moved, len(kept)
        for one in holders:
            one.rows[:] = [new_row[row] for row in one.rows]
            one.pending = new_row[one.pending]

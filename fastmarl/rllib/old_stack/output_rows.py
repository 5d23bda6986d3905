"""Stores policy outputs in rows until batches are built from them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tree  # type: ignore[import-untyped]
from ray.rllib.policy.sample_batch import SampleBatch

ACTIONS = SampleBatch.ACTIONS
FIRST_CAPACITY = 1024


class OutputRows:
    """Actions and other outputs of a policy, stored in columns.

    Rows are numbered in order of arrival. When the memory is full, rows still needed are compacted.

    Args:
        holders: Function that returns the objects that hold all rows still needed; each has a list `rows` and a row
            `pending`, which may be -1.
        flattens_actions: True if each nested action is recorded as a single array.

    Attributes:
        names: Names of the columns in the order of the policy outputs.
        has_read_only_actions: Per action leaf, True if RLlib would have made its arrays read-only.
    """

    def __init__(self, holders: Callable[[], Iterable[Any]], flattens_actions: bool):
        self._holders = holders
        self._flattens_actions = flattens_actions
        self._columns: dict[Any, np.ndarray] = {}
        self._action: Any = None  # an example of a nested action; its leaves are in the columns (ACTIONS, i)
        self._action_columns: list[Any] = [ACTIONS]
        self.names: list[str] = []
        self._used = 0
        self._capacity = 0
        self.has_read_only_actions: list[bool] = [False]

    def add(self, outputs: Mapping[str, Any], n: int) -> int:
        """Add n rows, for which `fits()` returns True, and return the index of the first."""
        columns = leaves_of(outputs)
        if self._used + n > self._capacity:
            if not self.names:
                self.names = [*outputs]
                if ACTIONS not in columns:
                    self._action = tree.map_structure(lambda leaf: leaf[0], outputs[ACTIONS])
                    self._action_columns = [key for key in columns if type(key) is tuple]
                    self.has_read_only_actions = [False] * len(self._action_columns)
            self._make_room(columns, n)
        first = self._used
        for name, memory in self._columns.items():
            memory[first : first + n] = columns[name]
        self._used = first + n
        return first

    def fits(self, outputs: Mapping[str, Any], n: int) -> bool:
        """Return True if outputs have n rows, and the same names, dtypes and shapes as before."""
        columns = leaves_of(outputs)
        if self._columns and [*columns] != [*self._columns]:
            return False
        for name, values in columns.items():
            memory = self._columns.get(name, values)
            if values.dtype != memory.dtype or values.shape[1:] != memory.shape[1:] or len(values) != n:
                return False
        return True

    def take(self, name: str, rows: np.ndarray) -> Any:
        """Return a copy of these rows of a column, as an array or nested arrays."""
        if name != ACTIONS or self._action is None:
            return self._columns[name][rows]
        leaves = [self._columns[key][rows] for key in self._action_columns]
        if self._flattens_actions:
            return np.concatenate([leaf.reshape(*rows.shape, -1) for leaf in leaves], axis=-1)
        return tree.unflatten_as(self._action, leaves)

    def taken(self, rows: list[int]) -> dict[str, Any]:
        """Return a copy of these rows of all columns, with actions nested as returned by the policy."""
        columns = {name: column[rows] for name, column in self._columns.items()}
        if self._action is None:
            return columns
        leaves = [columns[key] for key in self._action_columns]
        return {
            name: tree.unflatten_as(self._action, leaves) if name == ACTIONS else columns[name] for name in self.names
        }

    def row(self, row: int) -> dict[str, Any]:
        """Return a copy of a single row of all columns."""
        return {
            name: self._action_of(row) if name == ACTIONS else _of_row(self._columns[name], row) for name in self.names
        }

    def _action_of(self, row: int) -> Any:
        leaves = [_of_row(self._columns[key], row) for key in self._action_columns]
        for leaf, is_read_only in zip(leaves, self.has_read_only_actions, strict=True):
            if is_read_only and isinstance(leaf, np.ndarray):
                leaf.setflags(write=False)
        return leaves[0] if self._action is None else tree.unflatten_as(self._action, leaves)

    def _make_room(self, columns: Mapping[Any, np.ndarray], n: int) -> None:
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


def leaves_of(outputs: Mapping[str, Any]) -> Mapping[Any, np.ndarray]:
    """Return column -> array, with a column (ACTIONS, i) for each leaf of nested actions."""
    actions = outputs[ACTIONS]
    if isinstance(actions, np.ndarray):
        return outputs
    others = {name: values for name, values in outputs.items() if name != ACTIONS}
    return {(ACTIONS, i): leaf for i, leaf in enumerate(tree.flatten(actions))} | others


def _of_row(column: np.ndarray, row: int) -> Any:
    return np.array(column[row]) if column.ndim > 1 else column[row]

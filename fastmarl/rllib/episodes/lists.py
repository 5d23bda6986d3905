"""Columns as lists of single items, which RLlib's episodes have while they are recorded."""

from operator import is_
from typing import Any, NamedTuple

import numpy as np


class ListedColumn(NamedTuple):
    """A buffer of RLlib's whose array was turned into a list of items, those of more than one axis as views of it."""

    buffer: Any
    array: np.ndarray
    items: tuple[Any, ...]

    def put_back(self) -> None:
        """Let the buffer have its array again, unless somebody has changed the list."""
        found = self.buffer.data
        if type(found) is list and len(found) == len(self.items) and all(map(is_, found, self.items)):
            self.buffer.data, self.buffer.finalized = self.array, True


def items_of(column: Any, types: Any = np.generic) -> list[Any]:
    """The rows of an array, or of a nest of arrays, one by one.

    Args:
        column: arrays, dicts and tuples.
        types: what numbers in the rows of an array are: int, NumPy's scalars, or np.ndarray (of shape ()); as one for
            all, or in the same nest.
    """
    if isinstance(column, np.ndarray):
        if column.ndim > 1 or issubclass(types, np.generic):
            return list(column)
        return column.tolist() if types is int else [np.array(item) for item in column]
    if isinstance(column, dict):
        parts = [items_of(part, types[key] if isinstance(types, dict) else types) for key, part in column.items()]
        return [dict(zip(column, row, strict=True)) for row in zip(*parts, strict=True)]
    parts = [items_of(part, types[i] if isinstance(types, tuple) else types) for i, part in enumerate(column)]
    return list(zip(*parts, strict=True))

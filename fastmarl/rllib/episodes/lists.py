"""Columns as lists of items, the form in which RLlib episodes record them."""

from functools import partial, reduce
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import tree  # type: ignore[import-untyped]
from ray.rllib.utils.spaces.space_utils import batch as batch_of

NUMBERS, FLOATS = "biufc", "fc"  # dtype kinds


class ListedColumn(NamedTuple):
    """An RLlib buffer whose array was converted to a list of items; items with axes are views of the array."""

    buffer: Any
    array: np.ndarray
    items: tuple[Any, ...]

    def put_back(self) -> None:
        """Restore the array of the buffer, unless the list has changed."""
        found = self.buffer.data
        if type(found) is list and len(found) == len(self.items) and all(map(is_, found, self.items)):
            self.buffer.data, self.buffer.finalized = self.array, True


def items_of(column: Any, types: Any = np.generic) -> list[Any]:
    """Return the rows of an array, or of a nest of arrays, as a list.

    Args:
        column: An array, or dicts and tuples of arrays.
        types: Type of single numbers: int, a NumPy scalar, or np.ndarray (of shape ()); a single type, or a nest of
            types like `column`.
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


def stacked(items: list[Any], lookback: int = 0) -> Any:
    """Stack items into arrays [n, ...] like RLlib's `to_numpy()`, in the dtypes of `with_common_dtype()`."""
    return batch_of(with_common_dtype(items, lookback))


def unite_dtypes(agent_episode: Any) -> None:
    """Cast the items of each column to a common dtype before RLlib stacks them into arrays."""
    for column in (agent_episode.observations, agent_episode.actions, agent_episode.rewards):
        if not column.finalized and column.data:
            column.data = with_common_dtype(column.data)
    for column in agent_episode.extra_model_outputs.values():
        if not column.finalized and column.data:
            column.data = with_common_dtype(column.data, column.lookback)


def with_common_dtype(items: list[Any], lookback: int = 0) -> list[Any]:
    """Return the items, cast to a common dtype where RLlib's batch() would truncate values.

    RLlib stacks arrays in the dtype of the first one, so floats after an integer lose their fractions. For plain
    numbers RLlib finds a dtype that can represent them all; this function does the same for arrays.

    Args:
        items: Numbers, arrays, or dicts and tuples of arrays.
        lookback: Number of lookback items, nonzero only for module outputs. RLlib log-probabilities are integers where
            actions were not explored; if only the lookback has integers, the floats of the chunk set the dtype.
    """
    wider = partial(_wider_dtype, lookback)
    first = items[0]
    if not isinstance(first, dict | tuple):
        dtype = wider(*items)
        return items if dtype is None else [np.asarray(item, dtype) for item in items]
    dtypes = tree.map_structure(wider, *items)
    if all(dtype is None for dtype in tree.flatten(dtypes)):
        return items
    return [tree.map_structure(_cast, item, dtypes) for item in items]


def _cast(value: Any, dtype: np.dtype | None) -> Any:
    return value if dtype is None else np.asarray(value, dtype)


def _wider_dtype(lookback: int, *values: Any) -> np.dtype | None:
    """Return a dtype that can represent all values, or None if the first dtype can, or if NumPy finds one."""
    if not isinstance(values[0], np.ndarray):
        return None
    dtypes = [np.asarray(value).dtype for value in values]
    first, own = dtypes[0], dtypes[lookback:]
    if all(dtype == first for dtype in dtypes) or any(dtype.kind not in NUMBERS for dtype in dtypes):
        return None
    if own and all(dtype.kind in FLOATS for dtype in own):
        dtypes = [*(dtype for dtype in dtypes[:lookback] if dtype.kind in FLOATS), *own]
    wider = reduce(_holding, dtypes)
    return None if wider == first else wider


def _holding(dtype: np.dtype, other: np.dtype) -> np.dtype:
    """Return `dtype`, or a dtype for both if `other` cannot be cast to it within the same kind."""
    return dtype if np.can_cast(other, dtype, "same_kind") else np.result_type(dtype, other)

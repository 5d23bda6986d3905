"""Columns of a SampleBatch: arrays or tensors [n, ...], dicts and tuples of such, lists of objects."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastmarl.core.columns import Columns
from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.legacy.batches.packing import is_packed, unpack

STATE_IN = "state_in_"


def joined(name: str, columns: Sequence[Any], axis: int) -> Any:
    """Columns of one name as one."""
    if isinstance(columns[0], list):
        return [entry for column in columns for entry in column]
    if isinstance(columns[0], dict | tuple):
        leaves = [dict(flatten_struct(column)) for column in columns]
        if any(of_one.keys() != leaves[0].keys() for of_one in leaves):
            raise BatchError(f"the columns {name!r} of these batches have different structures")
        paths = iter(leaves[0])
        return map_struct(lambda _: joined(name, _column_of(leaves, next(paths)), axis), columns[0])
    if isinstance(columns[0], torch.Tensor):
        return torch.cat(list(columns), dim=axis)
    if is_packed(columns[0]):
        raise BatchError(f"the column {name!r} is packed as a whole; call decompress_if_needed() before")
    return np.concatenate(columns, axis=axis)


def _column_of(leaves: Sequence[Mapping[Any, Any]], path: Any) -> list[Any]:
    return [of_one[path] for of_one in leaves]


def is_of_sequences(name: str) -> bool:
    """Whether the column has an entry for each sequence, not for each step."""
    return name == Columns.SEQ_LENS or name.startswith(STATE_IN)


def of_rows(column: Any, rows: Any) -> Any:
    """These entries of a column: one, a slice, or an array of their indices."""
    if isinstance(column, list):
        return [column[row] for row in rows] if isinstance(rows, np.ndarray) else column[rows]
    return map_struct(lambda leaf: leaf[rows], column)


def objects(entries: Sequence[Any]) -> np.ndarray:
    return np.fromiter(entries, object, len(entries))


def copy_of(column: Any) -> Any:
    if isinstance(column, list):
        return list(column)
    return map_struct(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, column)


def unpacked(leaf: Any) -> Any:
    if is_packed(leaf):
        return unpack(leaf)
    if isinstance(leaf, np.ndarray) and len(leaf) and is_packed(leaf[0]):
        return np.array([unpack(entry) for entry in leaf])
    return leaf


def count_steps(columns: Mapping[str, Any]) -> int:
    """By the sequences; or by the first column that has any, infos and states aside."""
    lengths = columns.get(Columns.SEQ_LENS)
    if lengths is not None and len(lengths):
        return int(lengths.sum())
    for name, column in columns.items():
        if not isinstance(name, str):
            raise BatchError(f"expected names of columns, got {name!r}")
        if name in (Columns.INFOS, Columns.SEQ_LENS) or name.startswith(("state_in_", "state_out_")):
            continue
        leaves = flatten_struct(column)
        if leaves and (n := _length(leaves[0][1])):
            return n
    return 0


def _length(leaf: Any) -> int:
    shape = getattr(leaf, "shape", ())
    return shape[0] if shape else 0

"""Functions on the columns of a SampleBatch: arrays or tensors [n, ...], dicts and tuples of them, lists of objects."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.legacy.batches.packing import is_packed, unpack

STATE_IN = "state_in_"


def joined(name: str, columns: Sequence[Any], axis: int) -> Any:
    """Concatenate the columns `name` of several batches along `axis`."""
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


def concatenated(batches: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Concatenate one or more batches; returns the columns of the result and its other arguments.

    Raises:
        BatchError: If a batch differs from the first one in its columns, their kinds, or its padding.
    """
    first = batches[0]
    for batch in batches:
        _check_like(batch, first)
    axis = 1 if first.time_major else 0
    columns = {
        name: joined(name, [batch[name] for batch in batches], axis) for name in first if name != Columns.SEQ_LENS
    }
    if Columns.SEQ_LENS in first:
        columns[Columns.SEQ_LENS] = np.concatenate([batch[Columns.SEQ_LENS] for batch in batches]).astype(np.int32)
    known = [(batch.num_grad_updates, batch.count) for batch in batches if batch.num_grad_updates is not None]
    return columns, {
        "_time_major": first.time_major,
        "_zero_padded": first.zero_padded,
        "_max_seq_len": None if first.max_seq_len is None else max(batch.max_seq_len or 0 for batch in batches),
        "_num_grad_updates": sum(number * count for number, count in known) / (sum(count for _, count in known) or 1),
    }


def _check_like(batch: Any, first: Any) -> None:
    if missing := [name for name in first if name not in batch]:
        raise BatchError(f"expected batches with the columns of the first one, {list(first)}; one lacks {missing}")
    padded_to = [(each.zero_padded, each.time_major, each.max_seq_len is None) for each in (first, batch)]
    if padded_to[0] != padded_to[1] or (first.zero_padded and first.max_seq_len != batch.max_seq_len):
        raise BatchError("expected batches that are padded alike; zero_padded, time_major and max_seq_len are "
                         f"{first.zero_padded}, {first.time_major} and {first.max_seq_len} in the first one, "
                         f"{batch.zero_padded}, {batch.time_major} and {batch.max_seq_len} in another")  # fmt: skip


def zero_padded(column: Any, lengths: np.ndarray, max_seq_len: int) -> Any:
    """Pad each sequence of a column to `max_seq_len` steps, with zeros, or with None if the column holds objects."""
    steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows = np.repeat(np.arange(len(lengths)) * max_seq_len, lengths) + steps

    def padded(leaf: Any) -> np.ndarray:
        values = objects(leaf) if isinstance(leaf, list) else np.asarray(leaf)
        empty = None if values.dtype == object else np.zeros((), values.dtype)
        whole = np.full((len(lengths) * max_seq_len, *values.shape[1:]), empty)
        whole[rows] = values
        return whole

    return padded(column) if isinstance(column, list) else map_struct(padded, column)


def even_edges(n: int, n_pieces: int) -> list[int]:
    """Return the edges of `n_pieces` pieces of n steps, of which the last ones may be a step longer."""
    length, n_longer = divmod(n, n_pieces)
    return [i * length + max(0, i - (n_pieces - n_longer)) for i in range(n_pieces + 1)]


def _column_of(leaves: Sequence[Mapping[Any, Any]], path: Any) -> list[Any]:
    return [of_one[path] for of_one in leaves]


def is_of_sequences(name: str) -> bool:
    """Return true if the column has an entry per sequence instead of one per step."""
    return name == Columns.SEQ_LENS or name.startswith(STATE_IN)


def of_rows(column: Any, rows: Any) -> Any:
    """Return the entries of a column at an index, a slice, or an array of indices."""
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
    """Count steps by the lengths of sequences, or else by the first non-empty column, infos and states aside."""
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

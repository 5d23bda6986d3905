"""Random minibatches over several epochs."""

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.structs import flatten_struct, map_struct


def minibatches(
    batch: Mapping[str, Any], size: int, epochs: int = 1, generator: torch.Generator | None = None
) -> Iterator[dict[str, Any]]:
    """Yield minibatches of rows in random order, with a new order for each epoch.

    Columns of the same dtype are joined into a single matrix, so that a minibatch needs one gather operation per dtype.
    The tensors of a minibatch are views of the gathered rows, which later minibatches do not overwrite.

    Args:
        batch: Name -> tensor [n, ...], or dicts and tuples of tensors, as from `to_tensors()`. Sequences [n, T, ...]
            with "state_in" [n, ...] are not split.
        size: Number of rows per minibatch; the last minibatch of an epoch has the remaining rows.
        epochs: Number of passes over the batch.
        generator: Random generator for the order; None for the global torch generator.

    Raises:
        BatchError: If columns differ in number of rows or device, or the batch has no columns.
    """
    if size < 1 or epochs < 0:
        raise BatchError(f"expected size >= 1 and epochs >= 0, got {size} and {epochs}")
    packed = PackedRows(batch)
    for _ in range(epochs):
        order = torch.randperm(packed.n, generator=generator, device=None if generator is None else generator.device)
        for rows in order.to(packed.device).split(operator.index(size)):
            if len(rows):
                yield packed.take(rows)


class PackedRows:
    """A batch whose columns are concatenated per dtype."""

    def __init__(self, batch: Mapping[str, Any]):
        self._batch = dict(batch)
        self.n, self.device = rows_and_device(batch)
        leaves = list(leaves_of(batch))
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        self._places: list[tuple[torch.dtype, int, torch.Size]] = []  # per leaf: matrix, position in it, shape
        for _, leaf in leaves:
            parts = by_dtype.setdefault(leaf.dtype, [])
            self._places.append((leaf.dtype, len(parts), leaf.shape[1:]))
            parts.append(leaf.reshape(self.n, leaf.shape[1:].numel()))
        self._widths = {dtype: [part.shape[1] for part in parts] for dtype, parts in by_dtype.items()}
        self._matrices = {dtype: torch.cat(parts, 1) for dtype, parts in by_dtype.items()}

    def take(self, rows: Tensor) -> dict[str, Any]:
        """Return the rows with the given indices, int64 [k] on the device of the batch."""
        taken = {
            dtype: matrix.index_select(0, rows).split(self._widths[dtype], 1)
            for dtype, matrix in self._matrices.items()
        }
        leaves = iter([taken[dtype][part].view(len(rows), *shape) for dtype, part, shape in self._places])
        return {name: map_struct(lambda _: next(leaves), column) for name, column in self._batch.items()}


def leaves_of(batch: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, tensor) for each leaf of all columns."""
    return (((name, *path), leaf) for name, column in batch.items() for path, leaf in flatten_struct(column))


def rows_and_device(batch: Mapping[str, Any]) -> tuple[int, torch.device]:
    """Return the number of rows and their device.

    Raises:
        BatchError: If columns differ in number of rows or device, or there are no columns.
    """
    leaves = list(leaves_of(batch))
    if not leaves:
        raise BatchError("expected a batch with columns, got none")
    for path, leaf in leaves:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            raise BatchError(f"expected tensors with rows, got {type(leaf).__name__} at {path}; see to_tensors()")
    (first_path, first), *others = leaves
    for path, leaf in others:
        if (len(leaf), leaf.device) != (len(first), first.device):
            raise BatchError(f"expected the same number of rows and device in all columns, got {len(first)} on "
                             f"{first.device} at {first_path}, {len(leaf)} on {leaf.device} at {path}")  # fmt: skip
    return len(first), first.device

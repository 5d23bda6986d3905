"""Conversion of batch columns to tensors."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.columns import Columns, Recorded, recorded_name
from fastmarl.core.spaces.structs import flatten_struct, map_struct

NUMBERS = "fiub"  # kinds of dtypes


def to_tensors(
    columns: Mapping[str, Any], names: Iterable[str] | None = None, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Convert a batch of `fastmarl.batches` to PyTorch tensors.

    Args:
        columns: Name -> array [n, ...], or dicts and tuples of arrays.
        names: Names of the columns to convert; None for all numeric columns. Recorded action masks are included if
            "actions" are converted.
        device: Device of the tensors. CPU tensors share memory with the arrays, except for arrays that PyTorch does not
            support: read-only arrays, negative strides, and non-native byte order.

    Returns:
        Name -> tensor, nested like the columns; float64 becomes float32.

    Raises:
        BatchError: If a named column is missing or not numeric.
    """
    if names is None:
        names = [name for name, column in columns.items() if not _others(column)]
    wanted: list[Any] = list(names)
    masks = recorded_name(Recorded.ACTION_MASK, columns)
    if Columns.ACTIONS in wanted and masks in columns and masks not in wanted:  # log probabilities depend on them
        wanted.append(masks)
    if missing := [name for name in wanted if name not in columns]:
        raise BatchError(f"unknown columns {missing}; choose from {list(columns)}")
    for name in wanted:
        if others := _others(columns[name]):
            raise BatchError(f"the column {name!r} can't be converted to a tensor: it contains {others[0]}")

    def tensor_of(leaf: Any) -> torch.Tensor:
        tensor = torch.as_tensor(_fit(leaf) if isinstance(leaf, np.ndarray) else leaf)
        return tensor.to(device, torch.float32 if tensor.dtype == torch.float64 else tensor.dtype)

    return {name: map_struct(tensor_of, columns[name]) for name in wanted}


def _fit(array: np.ndarray) -> np.ndarray:
    """Return the array, or a copy if PyTorch cannot use it."""
    if array.dtype.kind == "f" and array.itemsize > 8:
        return array.astype(np.float64)
    if array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0:
        return array
    return array.astype(array.dtype.newbyteorder("="), order="C")


def _others(column: Any) -> list[str]:
    """Describe the leaves of a column that are not numeric arrays."""
    if isinstance(column, list):
        return ["a list"]
    leaves = [leaf for _, leaf in flatten_struct(column)]
    return [
        f"an array of {leaf.dtype}" if isinstance(leaf, np.ndarray) else type(leaf).__name__
        for leaf in leaves
        if not (isinstance(leaf, torch.Tensor) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in NUMBERS))
    ]

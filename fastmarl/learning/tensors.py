"""Columns as tensors."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fastmarl.core.columns import Columns, Recorded, recorded_name
from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.structs import flatten_struct, map_struct

NUMBERS = "fiub"  # kinds of dtypes


def to_tensors(
    columns: Mapping[str, Any], names: Iterable[str] | None = None, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """A batch of `fastmarl.batches` for PyTorch.

    Args:
        columns: name -> array [n, ...], or dicts and tuples of such.
        names: of the columns wanted; None: all that are numbers. Recorded action masks come along with "actions".
        device: where they go. On the CPU, tensors share the arrays' memory, except that of arrays which PyTorch can't
            take as they are: read-only ones, reversed ones, and those of another byte order.

    Returns:
        Name -> tensor, nested as before; float64 as float32.

    Raises:
        BatchError: a column that is named is missing, or has something else than numbers.
    """
    if names is None:
        names = [name for name, column in columns.items() if not _others(column)]
    wanted: list[Any] = list(names)
    masks = recorded_name(Recorded.ACTION_MASK, columns)
    if Columns.ACTIONS in wanted and masks in columns and masks not in wanted:  # what rates an action needs its mask
        wanted.append(masks)
    if missing := [name for name in wanted if name not in columns]:
        raise BatchError(f"there are no columns {missing}; there are {list(columns)}")
    for name in wanted:
        if others := _others(columns[name]):
            raise BatchError(f"the column {name!r} can't become a tensor: it has {others[0]}")

    def tensor_of(leaf: Any) -> torch.Tensor:
        tensor = torch.as_tensor(_fit(leaf) if isinstance(leaf, np.ndarray) else leaf)
        return tensor.to(device, torch.float32 if tensor.dtype == torch.float64 else tensor.dtype)

    return {name: map_struct(tensor_of, columns[name]) for name in wanted}


def _fit(array: np.ndarray) -> np.ndarray:
    """The array, or a copy if PyTorch can't take it."""
    if array.dtype.kind == "f" and array.itemsize > 8:
        return array.astype(np.float64)
    if array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0:
        return array
    return array.astype(array.dtype.newbyteorder("="), order="C")


def _others(column: Any) -> list[str]:
    """Describe what in a column is no array of numbers."""
    if isinstance(column, list):
        return ["a list"]
    leaves = [leaf for _, leaf in flatten_struct(column)]
    return [
        f"an array of {leaf.dtype}" if isinstance(leaf, np.ndarray) else type(leaf).__name__
        for leaf in leaves
        if not (isinstance(leaf, torch.Tensor) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in NUMBERS))
    ]

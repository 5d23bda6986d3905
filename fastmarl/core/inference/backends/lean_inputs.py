"""Inputs of lean inference: the leaves of observations that a network reads, and their conversion to rows."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from fastmarl.core.inference.backends.dense_layers import NotDenseError, is_watched
from fastmarl.core.modules.encoders import Entries, Flat
from fastmarl.core.spaces.layout import Leaf, RowLayout
from fastmarl.core.spaces.structs import Path

DTYPES = (np.float32, np.uint8, np.int8)  # dtypes that compiled code reads in place
UNKNOWN = "the observations are not a Box of floats or bytes"


class Inputs(NamedTuple):
    """The leaves that a network reads.

    Attributes:
        leaves: Indices in the layout.
        sizes: Number of values in a row of each leaf.
        joined: True if the leaves are concatenated as floats; otherwise there is one leaf.
        scale: Factor for integers.
    """

    leaves: tuple[int, ...]
    sizes: tuple[int, ...]
    joined: bool
    scale: float


def take_inputs(layers: list[nn.Module], layout: RowLayout, path: Path) -> tuple[Inputs, list[nn.Module]]:
    """Find the leaves that a network reads of the observations at `path`, and its layers after flattening.

    Raises:
        NotDenseError: If a layer is not known.
    """
    first = layers[0] if layers else None
    if isinstance(first, Entries):
        found = [(_index_at(layout, leaf_path), encoder) for leaf_path, encoder in _encoders(first, path)]
        for index, encoder in found:
            _check_joined(layout.leaves[index], encoder)
        return _inputs(layout, [index for index, _ in found], joined=True), layers[1:]
    index = _index_at(layout, path)
    leaf = layout.leaves[index]
    if leaf.dtype not in DTYPES:
        raise NotDenseError(UNKNOWN)
    if type(first) is Flat and (leaf.dtype != np.float32 or first._scale == 1.0):
        return _inputs(layout, [index], scale=first._scale), layers[1:]
    if not _is_vector(leaf) or type(first) is Flat:
        raise NotDenseError("its first layer does not flatten observations as the default nets do")
    return _inputs(layout, [index]), layers


def mask_leaves(layout: RowLayout, key: str | None, n_logits: int) -> list[tuple[int, int]]:
    """Return (index, number of values in a row) of the leaves at `key`, which mask the logits.

    Raises:
        NotDenseError: If torch sees other numbers, or their number differs from that of logits.
    """
    if key is None:
        return []
    leaves = [(i, leaf) for i, leaf in enumerate(layout.leaves) if leaf.path[:1] == (key,)]
    masks = [(i, math.prod(leaf.shape)) for i, leaf in leaves]
    for _, leaf in leaves:
        if not _is_known(leaf.dtype):
            raise NotDenseError(f"its action mask is of {leaf.dtype}")
    if sum(size for _, size in masks) != n_logits:
        raise NotDenseError(f"it has {n_logits} logits, but an action mask for another number")
    return masks


class Rows:
    """Joins leaves of observations to rows, in memory that is reused.

    Args:
        inputs: The leaves that are read.
    """

    def __init__(self, inputs: Inputs):
        self.inputs = inputs
        self._memory = np.empty((0, sum(inputs.sizes)), np.float32)

    def of(self, leaves: list[np.ndarray]) -> np.ndarray:
        """Return rows [n, ...] of observations whose leaves are [n, ...]; the next call overwrites them."""
        inputs = self.inputs
        if not inputs.joined:
            return leaves[inputs.leaves[0]]
        n = len(leaves[0])
        if n > len(self._memory):
            self._memory = np.empty((n, self._memory.shape[1]), np.float32)
        parts = [leaves[index].reshape(n, size) for index, size in zip(inputs.leaves, inputs.sizes, strict=True)]
        return np.concatenate(parts, 1, out=self._memory[:n], casting="unsafe")


def _inputs(layout: RowLayout, leaves: list[int], *, joined: bool = False, scale: float = 1.0) -> Inputs:
    return Inputs(tuple(leaves), tuple(math.prod(layout.leaves[index].shape) for index in leaves), joined, scale)


def _encoders(entries: Any, path: Path) -> Iterator[tuple[Path, nn.Module]]:
    """Yield (path, encoder) of each leaf."""
    if type(entries) is not Entries:
        raise NotDenseError(f"no compiled kernel for layer {type(entries).__name__}")
    for key, encoder in zip(entries._keys, entries.encoders, strict=True):
        if is_watched(encoder):
            raise NotDenseError(f"{type(encoder).__name__} has hooks, or is compiled")
        if isinstance(encoder, Entries):
            yield from _encoders(encoder, (*path, key))
        else:
            yield (*path, key), encoder


def _check_joined(leaf: Leaf, encoder: Any) -> None:
    kind = type(encoder)
    if kind not in (Flat, nn.Identity) or (kind is Flat and encoder._scale != 1.0):
        raise NotDenseError(f"no compiled kernel for layer {kind.__name__} of one of several entries")
    if not _is_known(leaf.dtype) or (kind is nn.Identity and not _is_vector(leaf)):
        raise NotDenseError(UNKNOWN)


def _index_at(layout: RowLayout, path: Path) -> int:
    for index, leaf in enumerate(layout.leaves):
        if leaf.path == path:
            return index
    raise NotDenseError(UNKNOWN)


def _is_known(dtype: np.dtype) -> bool:
    """Return True if torch sees the same numbers, as it gets doubles as floats."""
    return dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype != np.float64


def _is_vector(leaf: Leaf) -> bool:
    return leaf.dtype == np.float32 and len(leaf.shape) == 1

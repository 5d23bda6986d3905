"""Finds returned columns that share memory, so that writing to one changes the other."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import tree
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch


def shared(returned: list[Any]) -> set[tuple[str, str]]:
    """Pairs of paths to columns that overlap, in all that the calls returned."""
    ranges = []
    for i, value in enumerate(returned):
        for path, array in _columns(value, f"call {i}"):
            begin, end = np.lib.array_utils.byte_bounds(array)
            ranges.append((begin, end, path, array))
    ranges.sort(key=lambda one: one[:2])
    return {(one[2], other[2]) for one, other in _overlapping(ranges)}


def _overlapping(ranges: list[tuple]) -> Iterator[tuple[tuple, tuple]]:
    """Neighbours in memory; the widest so far is kept, as a block may hold many."""
    widest: tuple | None = None
    for one, other in pairwise(ranges):
        widest = one if widest is None or one[1] > widest[1] else widest
        if other[0] < widest[1] and np.shares_memory(widest[3], other[3]):
            yield widest, other


def _columns(value: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, tuple) and value and isinstance(value[0], (SampleBatch, MultiAgentBatch)):
        value = value[0]  # sample_with_count()
    if isinstance(value, MultiAgentBatch):
        for name, batch in value.policy_batches.items():
            yield from _columns(batch, f"{path}[{name!r}]")
    elif isinstance(value, SampleBatch):
        for name, column in dict(value).items():
            for at, leaf in tree.flatten_with_path(column) if not isinstance(column, list) else ():
                if isinstance(leaf, np.ndarray) and leaf.size and leaf.dtype != object:
                    yield f"{path}[{name!r}]{''.join(f'[{key!r}]' for key in at)}", leaf

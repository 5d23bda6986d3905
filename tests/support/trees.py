"""Trees of dicts, lists and arrays, as states are, spoilt in every place."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

OTHERS: list[Any] = [None, "x", -1, 2**64, 1.5, True, [], {}, {"x": 1}, np.zeros(2), np.array(["a"]), np.array([None])]


def spoilt(tree: Any) -> Iterator[tuple[str, Any]]:
    """(where and how, the whole tree with that change), for each place and many changes."""
    for path in list(_paths(tree)):
        *parents, last = path
        for how, value in _changes(_at(tree, path)):
            other = copy.deepcopy(tree)
            _at(other, parents)[last] = value
            yield f"{path}: {how}", other
        other = copy.deepcopy(tree)
        del _at(other, parents)[last]
        yield f"{path}: left out", other


def _changes(value: Any) -> Iterator[tuple[str, Any]]:
    for other in OTHERS:
        yield f"{other!r}", copy.deepcopy(other)
    if isinstance(value, np.ndarray) and value.size:
        yield "shorter", value[:-1].copy()
        yield "longer", np.concatenate([value, value[-1:]])
        yield "one axis more", value[None]
        for dtype in (np.int8, np.complex64, object):
            with np.errstate(invalid="ignore"):  # infinity is no integer
                other = value.astype(dtype)
            yield np.dtype(dtype).name, other
    elif isinstance(value, list):
        yield "twice", value * 2
    elif isinstance(value, dict):
        yield "with another key", {**value, "another": 1}


def _paths(tree: Any, above: tuple = ()) -> Iterator[tuple]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from _paths(value, (*above, key))


def _at(tree: Any, path: Any) -> Any:
    for key in path:
        tree = tree[key]
    return tree

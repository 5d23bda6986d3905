"""Trees of dicts, lists and arrays, as states are, spoilt in every place."""

import copy
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

OTHERS: list[Any] = [None, "x", -1, 2**64, 1.5, True, [], {}, {"x": 1}, np.zeros(2), np.array(["a"]), np.array([None])]


LEFT_OUT = object()


def spoilt(tree: Any, every: int = 1) -> Iterator[tuple[str, Any]]:
    """(where and how, the whole tree with that change), for each place and many changes, or one in `every`."""
    whole = pickle.dumps(tree)  # read in a tenth of the time of a deep copy
    places = ((path, *change) for path in _paths(tree) for change in _changes(_at(tree, path)))
    for path, how, value in itertools.islice(places, 0, None, every):
        other = pickle.loads(whole)
        *parents, last = path
        if value is LEFT_OUT:
            del _at(other, parents)[last]
        else:
            _at(other, parents)[last] = value
        yield f"{path}: {how}", other


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
    yield "left out", LEFT_OUT


def _paths(tree: Any, above: tuple = ()) -> Iterator[tuple]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from _paths(value, (*above, key))


def _at(tree: Any, path: Any) -> Any:
    for key in path:
        tree = tree[key]
    return tree

"""Functions for nested dicts, tuples and lists of arrays."""

from collections.abc import Callable, Mapping
from typing import Any

Path = tuple  # keys of dicts and indices (`Index`) of tuples, from the root to a leaf


class Index(int):
    """A tuple index in a path, as opposed to a plain int, which is a dict key."""


def flatten_struct(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """Return (path, leaf) pairs of nested dicts, tuples and lists, in order."""
    if isinstance(value, dict):
        return [leaf for key, entry in value.items() for leaf in flatten_struct(entry, (*path, key))]
    if isinstance(value, (tuple, list)):
        return [leaf for index, entry in enumerate(value) for leaf in flatten_struct(entry, (*path, Index(index)))]
    return [(path, value)]


def nested_struct(leaves: Mapping[Path, Any]) -> Any:
    """Reverse `flatten_struct()`. Lists become tuples; entries without leaves become (), or are dropped at the end."""
    if () in leaves:
        return leaves[()]
    entries: dict[Any, dict[Path, Any]] = {}
    for (key, *rest), leaf in leaves.items():
        entries.setdefault(key, {})[tuple(rest)] = leaf
    values = {key: nested_struct(inner) for key, inner in entries.items()}
    if not values or not all(isinstance(key, Index) for key in values):
        return values
    return tuple(values.get(i, ()) for i in range(1 + max(values)))


def map_struct(function: Callable[..., Any], value: Any) -> Any:
    """Apply `function` to every leaf, keeping the nesting (lists become tuples)."""
    if isinstance(value, dict):
        return {key: map_struct(function, entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map_struct(function, entry) for entry in value)
    return function(value)

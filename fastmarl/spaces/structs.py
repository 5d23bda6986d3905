"""Nested dicts, tuples and lists of arrays."""

from typing import Any

Path = tuple  # keys of dicts and `Index`es of tuples, from the whole value to one leaf


class Index(int):
    """An entry of a tuple in a path; an int that is none of these is a key of a dict."""


def flatten_struct(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """The leaves of nested dicts, tuples and lists with their paths, in order."""
    if isinstance(value, dict):
        return [leaf for key, part in value.items() for leaf in flatten_struct(part, (*path, key))]
    if isinstance(value, (tuple, list)):
        return [leaf for index, part in enumerate(value) for leaf in flatten_struct(part, (*path, Index(index)))]
    return [(path, value)]


def map_struct(function, value: Any) -> Any:
    """`function` of every leaf, in the same nesting (lists become tuples)."""
    if isinstance(value, dict):
        return {key: map_struct(function, part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map_struct(function, part) for part in value)
    return function(value)

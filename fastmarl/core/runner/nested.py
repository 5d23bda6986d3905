"""Nested dicts of metrics, and their keys."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Path = tuple[Hashable, ...]
Key = Hashable | Sequence[Any]


def path_of(key: Any) -> Path:
    """A key as a flat tuple."""
    return tuple(name for part in key for name in path_of(part)) if isinstance(key, (tuple, list)) else (key,)


def leaves_of(values: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """(path, value) of each value of a nested structure of dicts, lists and tuples; items of lists by their index."""
    if not isinstance(values, (Mapping, list, tuple)):
        yield path, values
        return
    for name, value in values.items() if isinstance(values, Mapping) else enumerate(values):
        yield from leaves_of(value, (*path, *path_of(name)))


def nested(items: Iterable[tuple[Path, Any]]) -> dict[Any, Any]:
    """A nested dict of (path, value)s."""
    whole: dict[Any, Any] = {}
    for (*parents, last), value in items:
        inner = whole
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return whole


def listed(values: Any) -> Any:
    """Each value of a nested dict in a list of its own."""
    return {name: listed(value) for name, value in values.items()} if isinstance(values, dict) else [values]


def merged(first: dict[Any, Any], second: dict[Any, Any]) -> dict[Any, Any]:
    """A nested dict with the values of both; of two at one place, the second's."""
    both = dict(first)
    for name, value in second.items():
        inner = first.get(name)
        both[name] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both

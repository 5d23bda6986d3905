"""Nested dicts of metrics, and their keys."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Path = tuple[Hashable, ...]
Key = Hashable | Sequence[Any]


def path_of(key: Any) -> Path:
    """Flatten a key to a tuple."""
    return tuple(name for part in key for name in path_of(part)) if isinstance(key, (tuple, list)) else (key,)


def leaves_of(values: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield (path, value) of each value in nested dicts, lists and tuples; the key of a list item is its index."""
    if not isinstance(values, (Mapping, list, tuple)):
        yield path, values
        return
    for name, value in values.items() if isinstance(values, Mapping) else enumerate(values):
        yield from leaves_of(value, (*path, *path_of(name)))


def nested(items: Iterable[tuple[Path, Any]]) -> dict[Any, Any]:
    """Build a nested dict from (path, value) pairs."""
    whole: dict[Any, Any] = {}
    for (*parents, last), value in items:
        inner = whole
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return whole


def listed(values: Any) -> Any:
    """Wrap each value of a nested dict in a list."""
    return {name: listed(value) for name, value in values.items()} if isinstance(values, dict) else [values]


def merged(first: dict[Any, Any], second: dict[Any, Any]) -> dict[Any, Any]:
    """Merge two nested dicts; if both have a value for a key, the second one wins."""
    both = dict(first)
    for name, value in second.items():
        inner = first.get(name)
        both[name] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both

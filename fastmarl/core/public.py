"""Public classes carry the path by which users import them: pickles, tracebacks and docs show it."""

from collections.abc import Callable
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type[Any])


def public(module: str) -> Callable[[Kind], Kind]:
    """Return a decorator for a class that `module` hands on; it goes above all others."""

    def with_path(kind: Kind) -> Kind:
        kind.__module__ = module
        return kind

    return with_path

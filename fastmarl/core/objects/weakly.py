"""Callbacks that do not keep their object alive, so that reference counts alone free a runner."""

from collections.abc import Callable
from typing import Any
from weakref import ref


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a bound method without keeping its object alive.

    Store it in objects that the object of the method refers to. Once that object is freed, a call raises
    ReferenceError.
    """
    find, function = ref(method.__self__), method.__func__  # type: ignore[attr-defined]  # WeakMethod is slower

    def call(*args: Any) -> Any:
        owner = find()
        if owner is None:
            raise ReferenceError(f"the object of {function.__qualname__}() is gone")
        return function(owner, *args)

    return call

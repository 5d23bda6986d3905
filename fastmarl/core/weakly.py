"""Callbacks that don't keep their object alive, so that reference counts alone free a runner."""

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a bound method, to be held by what the method's object holds.

    Once that object is freed, a call raises ReferenceError.
    """
    find, name = WeakMethod(method), method.__qualname__

    def call(*args: Any, **kwargs: Any) -> Any:
        found = find()
        if found is None:
            raise ReferenceError(f"the object of {name}() is gone")
        return found(*args, **kwargs)

    return call

"""Callbacks that do not keep their object alive, so that reference counting alone can free a runner."""

from collections.abc import Callable
from typing import Any
from weakref import ref


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the bound `method` without keeping its object alive.

    Use it for callbacks stored in objects to which the method's object refers. Once that object has been freed, calls
    raise ReferenceError.
    """
    find, function = ref(method.__self__), method.__func__  # type: ignore[attr-defined]  # WeakMethod is slower

    def call(*args: Any) -> Any:
        owner = find()
        if owner is None:
            raise ReferenceError(f"the object of {function.__qualname__}() no longer exists")
        return function(owner, *args)

    return call

"""Objects that outlive their use where the cycle collector does not run."""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 60.0  # threads of freed writers write what is left, and end


@contextmanager
def uncollected() -> Iterator[None]:
    """Let reference counts alone free objects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def left_behind(use: Callable[[], Any]) -> Counter[str]:
    """Class -> how many objects of fastmarl's classes a call leaves that reference counts alone can't free.

    A first call fills caches.
    """
    use()
    with uncollected():
        before = set(map(id, gc.get_objects()))
        use()
        return what_stays(lambda: Counter(_class(each) for each in gc.get_objects() if _is_new(each, before)))


def what_stays(look: Callable[[], Any]) -> Any:
    """Look until there is nothing, or for a minute."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _is_new(value: Any, before: set[int]) -> bool:
    return id(value) not in before and str(type(value).__module__).startswith("fastmarl")


def _class(value: Any) -> str:
    return type(value).__qualname__

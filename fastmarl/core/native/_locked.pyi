from collections.abc import Callable
from threading import RLock
from typing import TypeVar

T = TypeVar("T")

def locked(lock: RLock, function: Callable[..., T], *args: object) -> T: ...

"""Locks for what threads may do at once with the same object."""

import os
from collections.abc import Callable
from threading import RLock
from typing import TypeVar

from fastmarl.native._locked import locked

T = TypeVar("T")


class ProcessLock:
    """A lock of this process. A forked process has a new one: a thread that is not there may hold the old."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = RLock()

    def run(self, function: Callable[..., T], *args: object) -> T:
        """What the function returns for these arguments; no other thread runs one meanwhile. It is released in every
        case, an interrupt at any line included."""
        return locked(self._lock, function, *args)

"""Locks for what threads may do at once with the same object."""

import os
from threading import RLock
from typing import Any


class ProcessLock:
    """Called, gives this process's lock. A forked process has a new one: a thread that is not there may hold the old.

    ```python
    with lock():
    ```
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = RLock()

    def __call__(self) -> Any:
        return self._lock

"""Signals that end a training run, but not in the middle of an update."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

WATCHED = (signal.SIGINT, signal.SIGTERM)


class EndSignals:
    """Notes Ctrl-C and SIGTERM within a `with` block instead of interrupting it. A second one interrupts.

    The block has the imports, too: an interrupt that is raised in compiled code's callbacks there may be lost.

    Attributes:
        received: the signal's number, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            self._before = {each: signal.signal(each, self._note) for each in WATCHED}
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Let signals interrupt again."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

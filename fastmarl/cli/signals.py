"""Signals that stop a training run without interrupting an update."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

WATCHED = (signal.SIGINT, signal.SIGTERM)


class EndSignals:
    """Context manager that records Ctrl-C or SIGTERM instead of interrupting its block; a second signal interrupts.

    Put imports inside the block too, because they may lose an interrupt that arrives in a callback of compiled code.

    Attributes:
        received: Number of the signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # other threads receive no signals
            self._before = {each: signal.signal(each, self._note) for each in WATCHED}
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Restore the signal handlers installed before the block."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

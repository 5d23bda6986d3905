"""Compiled functions on arrays; importing any of them defers interrupts (SIGINT) while numba compiles or loads code.

Compiling calls back from LLVM into Python. An interrupt raised in such a callback would be printed and lost, or cause
an LLVM error that kills the process.
"""

import signal
import threading
from types import FrameType
from typing import Any

from numba.core import event


class Deferral(event.Listener):
    """Holds back interrupts in the main thread until numba has released its compiler lock, then calls their handler."""

    def __init__(self) -> None:
        self._depth = 0  # number of nested functions being compiled
        self._handler: Any = None  # the program's handler
        self._arrived: list[tuple[int, FrameType | None]] = []

    def on_start(self, event: Any) -> None:
        if threading.current_thread() is not threading.main_thread():  # signal handlers never run there
            return
        if self._depth == 0:
            handler = signal.getsignal(signal.SIGINT)
            if not callable(handler):
                return
            if handler != self._note:
                self._handler, self._arrived = handler, []
            signal.signal(signal.SIGINT, self._note)  # raises an interrupt that is already pending
        self._depth += 1

    def on_end(self, event: Any) -> None:
        if self._depth == 0 or threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if self._depth == 0:
            signal.signal(signal.SIGINT, self._handler)
            arrived, self._arrived = self._arrived, []
            for each in arrived:
                self._handler(*each)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append((number, frame))


event.register("numba:compiler_lock", Deferral())

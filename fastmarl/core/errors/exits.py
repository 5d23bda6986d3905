"""Converts SystemExit in user code to an error, since it would exit the program silently, often with code 0."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any

from fastmarl.core.errors import UserExitError


def as_error(raised: Exception | SystemExit) -> Exception:
    """Return the exception itself, or a UserExitError in place of a SystemExit.

    Raises:
        SystemExit: If a signal handler of the program raised it, which means that the program is supposed to exit.
    """
    if isinstance(raised, Exception):
        return raised
    frames = traceback.extract_tb(raised.__traceback__)
    codes = {frame.f_code for frame, _ in traceback.walk_tb(raised.__traceback__)}
    if codes & _codes_of_signal_handlers():
        raise raised
    error = UserExitError(raised.code, f"{frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name})")
    error.__cause__ = raised
    for note in getattr(raised, "__notes__", ()):
        error.add_note(note)
    return error


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Raise a UserExitError in place of a SystemExit; see `as_error()`. KeyboardInterrupt is propagated."""
    try:
        yield
    except SystemExit as raised:
        raise as_error(raised) from raised


def _codes_of_signal_handlers() -> set[CodeType]:
    handlers: list[Any] = list(filter(callable, map(signal.getsignal, signal.valid_signals())))
    called: list[Any] = [handler.func if isinstance(handler, partial) else handler for handler in handlers]
    parts = [part for each in called for part in (each, each.__call__)]  # code of callable objects is in `__call__`
    return {code for part in parts if (code := getattr(part, "__code__", None)) is not None}

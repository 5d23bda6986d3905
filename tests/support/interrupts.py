"""KeyboardInterrupt at any line of the package that runs."""

import gc
import linecache
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

import fastmarl

PACKAGE = str(Path(fastmarl.__file__).parent)
ALL_LINES = os.environ.get("FASTMARL_EVERY_NTH_LINE") == "1"


def in_own_thread(test: Callable[..., None]) -> Callable[..., None]:
    """Python leaves what is raised by a trace function at the end of an except clause as the exception that its thread
    is handling, for good. So that thread ends with the test. (Signals are not looked for there.)"""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        gc.collect()  # runners that earlier tests left end here, and not at a line that is interrupted
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test, *args, **kwargs).result()

    return run


class Line(NamedTuple):
    """A line, and which time it runs."""

    file: str
    number: int
    nth: int

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{self.file[len(PACKAGE) + 1 :]}:{self.number} ({self.nth})"


@contextmanager
def tracing(at_line: Callable[[FrameType], None]) -> Any:
    """Call `at_line` before each line of the package that runs in this thread."""

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            at_line(frame)
        return local

    def of_package(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(PACKAGE) else None

    def resume(frame: FrameType, event: str, argument: Any) -> None:
        """An exception in a trace function ends the tracing: begin again, for the lines that run because of it."""
        if sys.gettrace() is None:
            sys.settrace(of_package)
            while frame is not None:
                if frame.f_code.co_filename.startswith(PACKAGE):
                    frame.f_trace = local
                frame = frame.f_back  # type: ignore[assignment]

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(of_package)
    sys.setprofile(resume)
    try:
        yield
    finally:
        sys.setprofile(before[1])
        sys.settrace(before[0])


def lines_of(call: Callable[[], Any]) -> list[Line]:
    """The lines that run in a call, in order: their first time and their last.

    Without the last of all if that is `return` of a variable: Python handles no signal between it and the caller's
    assignment.
    """
    times: Counter[tuple[str, int]] = Counter()
    last = None

    def count(frame: FrameType) -> None:
        nonlocal last
        last = frame.f_code.co_filename, frame.f_lineno
        times[last] += 1

    with tracing(count):
        result = call()
    del result  # only now, since lines that run when it is freed are not of the call
    if last and re.fullmatch(r"return \w+", Line(*last, 1).text):
        times.pop(last)
    return [Line(*line, nth) for line, n in times.items() for nth in sorted({1, n})]


class Interruption:
    """Interrupts a call before a line, and once more `again` lines later, if that is given."""

    def __init__(self, line: Line, again: int | None = None):
        self.line, self.again = line, again
        self.n_times = 0
        self._left = again
        self._n_seen = 0
        self._process = os.getpid()  # a process that is forked meanwhile inherits the tracing

    def __str__(self) -> str:
        again = "" if self.again is None else f", and again {self.again} lines later"
        return f"interrupted {self.n_times} times, at {self.line}{again}: {self.line.text}"

    def run(self, call: Callable[[], Any]) -> Any:
        """Return the call's result, or None if it was interrupted."""
        try:
            with tracing(self._look):
                return call()
        except KeyboardInterrupt:
            assert self.n_times
            return None

    def _look(self, frame: FrameType) -> None:
        if os.getpid() != self._process:
            return
        if self.n_times == 0:
            if (frame.f_code.co_filename, frame.f_lineno) == self.line[:2]:
                self._n_seen += 1
                if self._n_seen == self.line.nth:
                    self._interrupt()
        elif self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                self._interrupt()

    def _interrupt(self) -> None:
        self.n_times += 1
        raise KeyboardInterrupt


def interrupt_lines(
    try_line: Callable[[Interruption], None],
    lines: list[Line],
    rng: np.random.Generator,
    *,
    n_lines: int,
    twice: bool = False,
    may_miss: bool = False,
) -> None:
    """Call `try_line` with an interruption at each of `n_lines` of these lines, or at all if `ALL_LINES`.

    Args:
        twice: Whether a second interrupt follows, up to 60 lines later. As that is random, every third line will do.
        may_miss: Whether up to half of the lines need not run again.
    """
    if ALL_LINES:
        chosen = lines[:: 3 if twice else 1]
    else:
        chosen = [lines[i] for i in rng.choice(len(lines), min(n_lines, len(lines)), replace=False)]
    n_missed = 0
    for line in chosen:
        interruption = Interruption(line, int(rng.integers(0, 60)) if twice else None)
        try:
            try_line(interruption)
            assert interruption.n_times or may_miss, "the line did not run"
        except Exception as error:
            error.add_note(str(interruption))
            raise
        n_missed += not interruption.n_times
    assert n_missed <= len(chosen) / 2


def interrupted(
    call: Callable[[], Any], *, at: int, file: str = "", codes: Container[CodeType] = (), event: str = "line"
) -> bool:
    """Run a call, interrupt it at line (or "opcode") number `at` in this file or these functions, and return true if
    that happened."""
    numbers, own_pid = count(), os.getpid()

    def trace(frame: FrameType, what: str, argument: Any) -> Any:
        if frame.f_code.co_filename != file and frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = event == "opcode"
        if what == event and os.getpid() == own_pid and next(numbers) == at:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = event == "opcode"  # otherwise Python 3.12 reports no such events in any frame
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False

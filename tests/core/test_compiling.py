"""Interrupts while numba compiles a function or loads it: each reaches its handler, after the work and once."""

import os
import signal
import threading

import numpy as np
import pytest
from numba import njit
from numba.core import errors, event

from fastmarl.core.kernels import Deferral

ONE = np.ones(3)


class Interrupting(event.Listener):
    """Sends interrupts to this process whenever a function begins to be compiled, and notes the handler then."""

    def __init__(self, times=1):
        self.times, self.handlers = times, []

    def on_start(self, event):
        self.handlers.append(signal.getsignal(signal.SIGINT))
        for _ in range(self.times):
            os.kill(os.getpid(), signal.SIGINT)

    def on_end(self, event):
        pass


class Handler:
    def __init__(self):
        self.calls = []

    def __call__(self, number, frame):
        self.calls.append((number, frame is not None))


@pytest.fixture
def handler():
    before, handler = signal.getsignal(signal.SIGINT), Handler()
    signal.signal(signal.SIGINT, handler)
    yield handler
    signal.signal(signal.SIGINT, before)


def new_kernels():
    """Return two functions that are not compiled yet; the second one calls the first."""

    @njit
    def inner(x):
        return x.sum()

    @njit
    def outer(x):
        return inner(x) + 1

    return inner, outer


def compiled_under(interrupting, function):
    event.register("numba:compile", interrupting)
    try:
        return function()
    finally:
        event.unregister("numba:compile", interrupting)


def test_an_interrupt_is_raised_after_the_function_was_compiled():
    inner, outer = new_kernels()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        compiled_under(Interrupting(), lambda: outer(ONE))
    assert len(inner.signatures) == len(outer.signatures) == 1
    assert signal.getsignal(signal.SIGINT) is before
    assert outer(ONE) == 4


def test_a_programs_own_handler_gets_every_interrupt(handler):
    new_kernels()[1](ONE)  # numba first compiles functions of its own
    _, outer = new_kernels()
    interrupting = Interrupting(2)
    assert compiled_under(interrupting, lambda: outer(ONE)) == 4
    assert len(interrupting.handlers) == 2 and handler not in interrupting.handlers
    assert 2 <= len(handler.calls) <= 4 and set(handler.calls) == {(signal.SIGINT, True)}  # the system joins some
    assert signal.getsignal(signal.SIGINT) is handler
    compiled_under(Interrupting(0), lambda: new_kernels()[1](ONE))
    assert len(handler.calls) <= 4  # none again


def test_errors_of_compilation_leave_the_handler_in_place(handler):
    @njit
    def wrong(x):
        return x.no_such_method()

    with pytest.raises(errors.TypingError, match="no_such_method"):
        compiled_under(Interrupting(), lambda: wrong(ONE))
    assert signal.getsignal(signal.SIGINT) is handler and len(handler.calls) == 1


@pytest.mark.parametrize("other", [signal.SIG_IGN, signal.SIG_DFL])
def test_interrupts_without_a_handler_stay_without(other, handler):
    signal.signal(signal.SIGINT, other)
    interrupting = Interrupting(0)
    assert compiled_under(interrupting, lambda: new_kernels()[1](ONE)) == 4
    assert set(interrupting.handlers) == {other} and signal.getsignal(signal.SIGINT) is other


def test_compiling_in_another_thread_defers_nothing(handler):
    new_kernels()[1](ONE)  # numba first compiles functions of its own
    interrupting = Interrupting(0)
    thread = threading.Thread(target=compiled_under, args=(interrupting, lambda: new_kernels()[1](ONE)))
    thread.start()
    thread.join()
    assert interrupting.handlers == [handler, handler]


def test_interrupts_wait_for_the_outermost_lock(handler):
    deferral = Deferral()
    deferral.on_start(None)
    deferral.on_start(None)
    os.kill(os.getpid(), signal.SIGINT)
    deferral.on_end(None)
    assert not handler.calls
    deferral.on_end(None)
    assert handler.calls == [(signal.SIGINT, True)]
    deferral.on_end(None)  # the end of one that began without a handler
    assert signal.getsignal(signal.SIGINT) is handler and len(handler.calls) == 1

"""A process that this one has started: spoken to with timeouts, and ended in every case."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import socket
import threading
from collections.abc import Callable
from importlib import import_module
from itertools import count
from time import monotonic
from typing import Any, TypeVar

from fastmarl.core.errors import ConfigError
from fastmarl.core.processes.channel import Channel
from fastmarl.core.processes.protocol import CLOSE, DONE, FIRST
from fastmarl.core.processes.scriptless import ScriptlessProcess

T = TypeVar("T")

START_TIMEOUT_S = 300.0  # imports and constructors
CLOSE_TIMEOUT_S = 5.0


class ChildProcess:
    """Messages go to and fro; each gets one answer, in their order, and under its own number: after an interrupt nobody
    has to know how many are under way.

    A subclass says what is raised when the process is lost, and when it has failed to do what it was told.
    """

    gone: type[Exception]
    """What `_loss()` returns."""

    def _loss(self, error: Exception | None) -> Exception:
        """What to raise from now on, after an EOFError of the channel (the process has ended), a TimeoutError, or None
        (it was closed)."""
        raise NotImplementedError

    def _failure(self, told: Any) -> Exception:
        """What to raise for an answer that tells of a failure."""
        raise NotImplementedError

    def _open(
        self,
        start_method: str,
        target: Callable[..., None],
        plan: Any,
        *others: Any,
        name: str,
        daemon: bool,
        has_script: bool = True,
    ) -> None:
        """Prepare a process that will call `target(plan, channel, *others)`; see `ScriptlessProcess` for one that is
        spawned and has no script."""
        self._channel, self._other_end = Channel.pair()
        self._forks = start_method == "fork"
        context: Any = multiprocessing.get_context(start_method)
        process = context.Process if has_script else ScriptlessProcess
        args = plan, self._other_end, *others
        self._process: Any = process(target=target, args=args, name=name, daemon=daemon)
        self._end: Exception | None = None  # why it can't be used any more
        self._numbers = count(FIRST + 1)  # of messages
        self._answered_at = 0.0
        self._number_of_close = 0

    def start(self) -> None:
        """Start the process."""
        try:
            if self._forks:
                with_interrupts_deferred(self._process.start)
            else:  # may take long, and runs no hooks
                self._process.start()
        finally:
            self._other_end.sock.close()

    @property
    def pid(self) -> int | None:
        """Its process id, while it is there."""
        return None if self._process is None else self._process.pid

    @property
    def sock(self) -> socket.socket:
        """Becomes readable when an answer comes, or when the process ends."""
        return self._channel.sock

    def send(self, message: bytes) -> int:
        """Tell it to do something when it has done what it was told before. Returns the number of the answer.

        If the process is gone, that is learned from `recv()`.
        """
        number = next(self._numbers)
        if self._end is None:
            try:
                self._channel.send(number, message)
            except (EOFError, TimeoutError) as error:
                self._lost(error)
        return number

    def recv(self, number: int) -> Any:
        """The answer of this number, once; None if there is nothing to tell. Earlier ones are kept.

        Raises:
            Exception: the process is gone now, or it has failed to do it.
        """
        answers = self._channel.messages
        while number not in answers:
            self._read()
        answer = answers.pop(number)
        if answer == DONE:
            return None
        value = pickle.loads(answer[1:])
        if answer[:1] == DONE:
            return value
        raise self._failure(value)

    def _read(self) -> None:
        if self._end is not None:
            raise self._end
        try:
            self._channel.read()
        except (EOFError, TimeoutError) as error:
            raise self._lost(error) from None
        self._answered_at = monotonic()

    def has_answer(self, number: int) -> bool:
        """Whether `recv()` needs no wait. What is still in the socket doesn't count."""
        self._channel.file()  # what was read when an interrupt came
        return number in self._channel.messages or self._end is not None

    def give_up(self) -> None:
        """It has taken too long: `recv()` will say so."""
        self._lost(TimeoutError())

    def forget(self) -> None:
        """Want no answers to earlier messages any more. Those that are still to come are kept until the next time."""
        self._channel.messages.clear()

    def request(self, message: bytes) -> Any:
        """The answer to this message."""
        return self.recv(self.send(message))

    def begin_close(self) -> None:
        """Tell it to close what it has, and to end."""
        if self._end is None:
            self._channel.set_timeout(CLOSE_TIMEOUT_S)
            self._number_of_close = self.send(CLOSE)

    def end_close(self) -> None:
        """Wait until it has ended, by force if need be. Raises what closing has raised there."""
        try:
            with contextlib.suppress(self.gone):  # as it should be
                self.recv(self._number_of_close)
        finally:
            self.hang_up()
            self.end()

    def hang_up(self) -> None:
        """Close the channel: a process that waits for messages then ends by itself."""
        if self._end is None:
            self._end = self._loss(None)
        self._channel.close()
        self._other_end.sock.close()

    def end(self) -> None:
        """Wait a little for the process to end, then end it; nothing of it stays open."""
        if self.pid is not None:
            self._process.join(CLOSE_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self.pid is not None:
            self._process.kill()
            self._process.join()
            with_interrupts_deferred(self._free_process)

    def _free_process(self) -> None:
        self._process = None  # with it go its descriptors

    def how_it_ended(self, ready: str, too_soon: bool) -> str:
        """For an error's text: the process has ended, maybe before it was `ready`."""
        problem = f"has ended (exit code {self._process.exitcode})"
        if too_soon:
            problem += (
                f' before {ready}; see its traceback above, and note that with the start method "spawn" a script '
                "needs `if __name__ == '__main__':` around what it does"
            )
        return problem

    def _lost(self, error: Exception) -> Exception:
        """The error to raise after the channel's; the process is ended."""
        if not isinstance(error, TimeoutError):
            self._process.join(CLOSE_TIMEOUT_S)
        self._end = self._loss(error)
        self.kill()
        self._channel.close()
        return self._end


def with_interrupts_deferred(function: Callable[[], T]) -> T:
    """Call the function; an interrupt (SIGINT) that comes meanwhile is raised after it.

    Python runs the hooks of a fork, and what `multiprocessing` does when a process object is freed, without a caller:
    what is raised there is printed and lost. And a file descriptor that is a mere number would stay open.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        return function()
    arrived: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: arrived.append(arguments))
    try:
        return function()
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(*arrived[0])


def pickled(plan: Any, what: str, way_out: str) -> bytes:
    """A plan for a process that is started afresh.

    Raises:
        ConfigError: it can't be pickled: `what` can't be sent, and `way_out` says what to do.
    """
    try:
        pickler: Any = import_module("cloudpickle")  # takes functions of scripts and notebooks, and lambdas
    except ImportError:
        pickler = pickle
    try:
        return pickler.dumps(plan)
    except Exception as error:
        raise ConfigError(f"{what} can't be sent to a worker process: {error}; {way_out}") from error

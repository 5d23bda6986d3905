"""A child process with timeouts for its answers, which is ended in every case."""

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

START_TIMEOUT_S = 300.0  # includes imports and constructors
CLOSE_TIMEOUT_S = 5.0


class ChildProcess:
    """Exchanges messages with a process that this one starts.

    Each message gets one answer, in order and under its own number, so after an interrupt no one needs to know the
    number of answers under way. A subclass defines the errors for a lost process and for a failed request.
    """

    gone: type[Exception]
    """Type of the errors of `_loss()`."""

    def _loss(self, error: Exception | None) -> Exception:
        """Return the error to raise from now on.

        Args:
            error: EOFError of the channel (the process has ended), TimeoutError, or None (it was closed).
        """
        raise NotImplementedError

    def _failure(self, failure: Any) -> Exception:
        """Return the error for an answer that reports a failure."""
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
        """Prepare a process that will call `target(plan, channel, *others)`.

        Args:
            start_method: "spawn" or "fork".
            has_script: False for a `ScriptlessProcess`, which does not import the user's script.
        """
        self._channel, self._other_end = Channel.pair()
        self._forks = start_method == "fork"
        context: Any = multiprocessing.get_context(start_method)
        process = context.Process if has_script else ScriptlessProcess
        args = plan, self._other_end, *others
        self._process: Any = process(target=target, args=args, name=name, daemon=daemon)
        self._end: Exception | None = None  # error of every further call, once the process is lost or closed
        self._numbers = count(FIRST + 1)  # numbers of messages
        self._answered_at = 0.0
        self._number_of_close = 0

    def start(self) -> None:
        """Start the child process."""
        try:
            if self._forks:
                with_interrupts_deferred(self._process.start)
            else:  # may take long, but runs no hooks
                self._process.start()
        finally:
            self._other_end.sock.close()

    @property
    def pid(self) -> int | None:
        """Process id while the process exists, otherwise None."""
        return None if self._process is None else self._process.pid

    @property
    def sock(self) -> socket.socket:
        """Socket that becomes readable when an answer comes, or when the process ends."""
        return self._channel.sock

    def send(self, message: bytes) -> int:
        """Send a message, which the process executes after the earlier ones; return the number of the answer.

        A lost process is only reported by `recv()`.
        """
        number = next(self._numbers)
        if self._end is None:
            try:
                self._channel.send(number, message)
            except (EOFError, TimeoutError) as error:
                self._lost(error)
        return number

    def recv(self, number: int) -> Any:
        """Wait for the answer with this number, and take it; earlier answers are kept.

        Returns:
            The value of the answer; None if it has none.

        Raises:
            Exception: If the process is lost, or the request has failed.
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
        """Return True if `recv()` need not wait. Answers that are still in the socket don't count."""
        self._channel.file()  # files a packet that was read when an interrupt came
        return number in self._channel.messages or self._end is not None

    def give_up(self) -> None:
        """Treat the process as timed out, which `recv()` will report."""
        self._lost(TimeoutError())

    def forget(self) -> None:
        """Drop the answers to earlier messages. Those still to come are kept until the next call."""
        self._channel.messages.clear()

    def request(self, message: bytes) -> Any:
        """Send a message and wait for its answer."""
        return self.recv(self.send(message))

    def begin_close(self) -> None:
        """Ask the process to close its envs or other objects, and to end."""
        if self._end is None:
            self._channel.set_timeout(CLOSE_TIMEOUT_S)
            self._number_of_close = self.send(CLOSE)

    def end_close(self) -> None:
        """Wait until the process has ended, kill it if need be, and raise its error in closing."""
        try:
            with contextlib.suppress(self.gone):  # a process that was lost is closed, too
                self.recv(self._number_of_close)
        finally:
            self.hang_up()
            self.end()

    def hang_up(self) -> None:
        """Close the channel, upon which a process that waits for messages ends by itself."""
        if self._end is None:
            self._end = self._loss(None)
        self._channel.close()
        self._other_end.sock.close()

    def end(self) -> None:
        """Wait a little for the process to end, then kill it; close all that belongs to it."""
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
        self._process = None  # frees its file descriptors

    def how_it_ended(self, ready: str, too_soon: bool) -> str:
        """Describe the end of the process for an error's text.

        Args:
            ready: What the process does before it is ready.
            too_soon: True if it ended before that.
        """
        problem = f"has ended (exit code {self._process.exitcode})"
        if too_soon:
            problem += (
                f' before {ready}; see its traceback above, and note that with the start method "spawn" a script '
                "needs `if __name__ == '__main__':` around its code"
            )
        return problem

    def _lost(self, error: Exception) -> Exception:
        """End the process, and return the error to raise after an error of the channel."""
        if not isinstance(error, TimeoutError):
            self._process.join(CLOSE_TIMEOUT_S)
        self._end = self._loss(error)
        self.kill()
        self._channel.close()
        return self._end


def with_interrupts_deferred(function: Callable[[], T]) -> T:
    """Call the function; raise an interrupt (SIGINT) that comes meanwhile after it.

    Python runs the hooks of a fork, and `multiprocessing`'s code that frees a process object, without a caller: an
    error raised there is printed and lost, and a file descriptor that is a mere number would stay open.
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
    """Pickle a plan for a process that is spawned.

    Raises:
        ConfigError: If `plan` can't be pickled; the message names it by `what`, and suggests `way_out`.
    """
    try:
        pickler: Any = import_module("cloudpickle")  # pickles functions of scripts and notebooks, and lambdas
    except ImportError:
        pickler = pickle
    try:
        return pickler.dumps(plan)
    except Exception as error:
        raise ConfigError(f"{what} can't be sent to a worker process: {error}; {way_out}") from error

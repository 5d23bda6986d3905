"""A child process with timeouts for its answers and guaranteed termination."""

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
    """Exchanges messages with a child process.

    The child answers each message once, in order and under its number, so an interrupt cannot mix up answers.
    Subclasses define the errors for a lost process and for a failed request.
    """

    gone: type[Exception]
    """Class of the errors that `_loss()` returns."""

    def _loss(self, error: Exception | None) -> Exception:
        """Return the error that all later calls raise.

        Args:
            error: EOFError if the process has exited, TimeoutError, or None if it was closed.
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
            has_script: If False, use a `ScriptlessProcess`, which does not import the user script.
        """
        self._channel, self._other_end = Channel.pair()
        self._forks = start_method == "fork"
        context: Any = multiprocessing.get_context(start_method)
        process = context.Process if has_script else ScriptlessProcess
        args = plan, self._other_end, *others
        self._process: Any = process(target=target, args=args, name=name, daemon=daemon)
        self._end: Exception | None = None  # error that all later calls raise, once the process is lost or closed
        self._numbers = count(FIRST + 1)  # message numbers
        self._answered_at = 0.0
        self._number_of_close = 0

    def start(self) -> None:
        """Start the child process."""
        try:
            if self._forks:
                with_interrupts_deferred(self._process.start)
            else:  # may take long, but runs no fork hooks
                self._process.start()
        finally:
            self._other_end.sock.close()

    @property
    def pid(self) -> int | None:
        """Process id, or None if the process does not exist."""
        return None if self._process is None else self._process.pid

    @property
    def sock(self) -> socket.socket:
        """Socket that becomes readable when an answer arrives or the process exits."""
        return self._channel.sock

    def send(self, message: bytes) -> int:
        """Send a message, which is processed after earlier ones; return the number of its answer.

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
        """Wait for the answer with this number and remove it; earlier answers are kept.

        Returns:
            The value of the answer, or None.

        Raises:
            Exception: If the process is lost or the request failed.
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
        """Return True if `recv()` would not wait. Answers not yet read from the socket do not count."""
        self._channel.file()  # in case an interrupt came after reading a packet
        return number in self._channel.messages or self._end is not None

    def give_up(self) -> None:
        """Treat the process as timed out, which `recv()` will report."""
        self._lost(TimeoutError())

    def forget(self) -> None:
        """Drop the answers received so far. Answers that arrive later are kept until the next call."""
        self._channel.messages.clear()

    def request(self, message: bytes) -> Any:
        """Send a message and wait for its answer."""
        return self.recv(self.send(message))

    def begin_close(self) -> None:
        """Tell the process to close its objects, such as envs, and to exit."""
        if self._end is None:
            self._channel.set_timeout(CLOSE_TIMEOUT_S)
            self._number_of_close = self.send(CLOSE)

    def end_close(self) -> None:
        """Wait for the process to exit, killing it if necessary, and raise any error from closing."""
        try:
            with contextlib.suppress(self.gone):  # a lost process counts as closed
                self.recv(self._number_of_close)
        finally:
            self.hang_up()
            self.end()

    def hang_up(self) -> None:
        """Close the channel, which makes a process that waits for messages exit."""
        if self._end is None:
            self._end = self._loss(None)
        self._channel.close()
        self._other_end.sock.close()

    def end(self) -> None:
        """Wait briefly for the process to exit, then kill it and free its resources."""
        if self.pid is not None:
            self._process.join(CLOSE_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Terminate the process immediately."""
        if self.pid is not None:
            self._process.kill()
            self._process.join()
            with_interrupts_deferred(self._free_process)

    def _free_process(self) -> None:
        self._process = None  # frees its file descriptors

    def how_it_ended(self, start: str, too_soon: bool) -> str:
        """Describe how the process ended, for an error message.

        Args:
            start: What the process does until it is ready; follows "while" in the message.
            too_soon: True if the process ended before it was ready.
        """
        problem = f"exited (exit code {self._process.exitcode})"
        if too_soon:
            problem += (
                f' while {start}; see its traceback above, and note that with the start method "spawn" a script '
                "needs `if __name__ == '__main__':` around its code"
            )
        return problem

    def _lost(self, error: Exception) -> Exception:
        """Kill the process after `error` in the channel; return the error to raise."""
        if not isinstance(error, TimeoutError):
            self._process.join(CLOSE_TIMEOUT_S)
        self._end = self._loss(error)
        self.kill()
        self._channel.close()
        return self._end


def with_interrupts_deferred(function: Callable[[], T]) -> T:
    """Call a function; an interrupt (SIGINT) that arrives during the call is handled after it.

    Errors raised in fork hooks, and in the `multiprocessing` code that frees a process object, never reach a caller:
    they are only printed, and file descriptors may remain open.
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
    """Pickle a plan for a spawned process.

    Raises:
        ConfigError: If `plan` cannot be pickled; the message describes it as `what` and suggests `way_out`.
    """
    try:
        pickler: Any = import_module("cloudpickle")  # pickles functions of scripts and notebooks, and lambdas
    except ImportError:
        pickler = pickle
    try:
        return pickler.dumps(plan)
    except Exception as error:
        raise ConfigError(f"{what} cannot be sent to a worker process: {error}; {way_out}") from error

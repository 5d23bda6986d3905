"""Worker processes as the runner sees them: started, spoken to with timeouts, and ended in every case."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import socket
from collections.abc import Hashable
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from time import monotonic
from typing import Any

from fastmarl.errors import ConfigError, EnvCheckError, EnvTimeoutError, EnvWorkerError, RemoteEnvError
from fastmarl.vector.remote import EnvDescription
from fastmarl.vector.workers.channel import Channel
from fastmarl.vector.workers.shm import EnvSlots, WorkerMemory, new_memory_file
from fastmarl.vector.workers.worker import (
    CALL,
    CLOSE,
    DONE,
    FIRST,
    REMAKE,
    SPACES,
    Failure,
    WorkerPlan,
    run_worker,
)

START_TIMEOUT_S = 300.0  # imports and constructors
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class WorkerOptions:
    """How workers are run.

    Attributes:
        start_method: "spawn" or "fork".
        step_timeout_s: seconds that a worker may take to step (or reset) its envs.
    """

    start_method: str
    step_timeout_s: float


class WorkerProcess:
    """One worker. After `start()` and `finish_start()`, messages go to and fro; each gets one answer, in their order,
    and under its own number: after an interrupt nobody has to know how many are under way.

    Attributes:
        env_indices: of its envs.
        descriptions: of its envs.
        is_started: whether its last start was finished; `restart()` it if not.

    Raises:
        ConfigError: what makes the envs can't be sent to another process.
    """

    def __init__(self, plan: WorkerPlan, options: WorkerOptions):
        self._plan = plan
        self._options = options
        self._sent_plan = _pickled(plan) if options.start_method == "spawn" else plan
        self.env_indices = [context.vector_index for context in plan.contexts]
        self.descriptions: list[EnvDescription] = []
        self.is_started = False
        self._open()

    def _open(self) -> None:
        self._channel, self._other_end = Channel.pair()
        context: Any = multiprocessing.get_context(self._options.start_method)
        name = f"fastmarl-envs-{self._plan.first}"
        self._process: Any = context.Process(
            target=run_worker, args=(self._sent_plan, self._other_end), name=name, daemon=True
        )
        self._memory: WorkerMemory | None = None
        self._end: EnvWorkerError | None = None  # why it can't be used any more
        self._numbers = count(FIRST + 1)  # of messages
        self._answered_at = 0.0
        self._number_of_close = 0

    def start(self) -> None:
        """Start the process."""
        try:
            self._process.start()
        finally:
            self._other_end.sock.close()

    def finish_start(self) -> None:
        """Wait until it has made its envs, and share memory with it.

        Raises:
            EnvCheckError: the envs have other agents or spaces than before. What a constructor raises comes through.
        """
        self._channel.set_timeout(START_TIMEOUT_S)
        new = self.recv(FIRST)
        for env_index, before, now in zip(self.env_indices, self.descriptions or new, new, strict=True):
            check_same(env_index, before, now)
        self.descriptions = new
        fd = new_memory_file(self.descriptions)
        try:
            self._memory = WorkerMemory(self.descriptions, fd)
            self._channel.send_file(fd)
        finally:
            os.close(fd)
        self._channel.set_timeout(self._options.step_timeout_s)
        self.is_started = True

    def restart(self) -> None:
        """Make process and envs anew, after an error or an interrupt. Raises as `finish_start()` does."""
        self.is_started = False
        self.hang_up()
        self.kill()
        self._open()
        self.start()
        self.finish_start()

    @property
    def pid(self) -> int | None:
        """Its process id, while it is there."""
        return None if self._process is None else self._process.pid

    @property
    def slots(self) -> list[EnvSlots]:
        """Those of its envs, by index."""
        assert self._memory is not None, "its start is not finished"
        return self._memory.slots

    @property
    def sock(self) -> socket.socket:
        """Becomes readable when an answer comes, or when the process ends."""
        return self._channel.sock

    def send(self, message: bytes) -> int:
        """Tell it to do something when it has done what it was told before. Returns the number of the answer.

        If the worker is gone, that is learned from `recv()`.
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
            EnvWorkerError, EnvTimeoutError: the worker is gone now. What an env raised comes through.
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
        raise error_of(value)

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

    def seconds_left(self, sent_at: float) -> float:
        """In which it must have done the next thing that it was told to, at this time of `monotonic()`."""
        return max(sent_at, self._answered_at) + self._options.step_timeout_s - monotonic()

    def give_up(self) -> None:
        """It has taken too long: `recv()` will say so."""
        self._lost(TimeoutError())

    def forget(self) -> None:
        """Want no answers to earlier messages any more. Those that are still to come are kept until the next time."""
        self._channel.messages.clear()

    def request(self, message: bytes) -> Any:
        """The answer to this message."""
        return self.recv(self.send(message))

    def call(self, index: int, name: str, args: tuple, kwargs: dict) -> Any:
        """Call a method of the env at `index`, or get an attribute."""
        return self.request(CALL + pickle.dumps((index, name, args, kwargs)))[0]

    def spaces(self, index: int, agent_id: Hashable) -> Any:
        """(observation space, action space) of one of the env's agents."""
        return self.request(SPACES + pickle.dumps((index, agent_id)))

    def remake(self, index: int) -> None:
        """Have the env at `index` made anew.

        Raises:
            EnvCheckError: it has other agents or spaces. What its constructor raises comes through.
        """
        new = self.request(REMAKE + pickle.dumps(index))
        check_same(self.env_indices[index], self.descriptions[index], new)

    def begin_close(self) -> None:
        """Tell it to close its envs and to end."""
        if self._end is None:
            self._channel.set_timeout(CLOSE_TIMEOUT_S)
            self._number_of_close = self.send(CLOSE)

    def end_close(self) -> None:
        """Wait until it has ended, by force if need be. Raises what an env's close() raises."""
        try:
            with contextlib.suppress(EnvWorkerError):  # it is gone, as it should be
                self.recv(self._number_of_close)
        finally:
            self.hang_up()
            self.end()

    def hang_up(self) -> None:
        """Close the channel: a worker that waits for messages then ends by itself."""
        if self._end is None:
            self._end = EnvWorkerError(self.env_indices, None, "was closed")
        self._channel.close()
        self._other_end.sock.close()

    def end(self) -> None:
        """Wait a little for the process to end, then end it; nothing of it stays open."""
        if self.pid is not None:
            self._process.join(CLOSE_TIMEOUT_S)
        self.kill()
        self._memory = None

    def kill(self) -> None:
        """End the process at once."""
        if self.pid is not None:
            self._process.kill()
            self._process.join()
            self._process = None  # with it go its descriptors

    def _lost(self, error: Exception) -> EnvWorkerError:
        """The error to raise after the channel's; the process is ended."""
        index = -1 if self._memory is None else int(self._memory.at[0])
        called = None if index < 0 else self.env_indices[index]
        if isinstance(error, TimeoutError):
            option = f"step_timeout_s={self._options.step_timeout_s}"
            problem = f"did not answer within {option if self._memory else START_TIMEOUT_S} s and was ended"
            self._end = EnvTimeoutError(self.env_indices, called, problem)
        else:
            self._process.join(CLOSE_TIMEOUT_S)
            problem = f"has ended (exit code {self._process.exitcode})"
            if self._memory is None:
                problem += (
                    " before it had made its envs; see its traceback above, and note that with the start method "
                    "\"spawn\" a script needs `if __name__ == '__main__':` around what it does"
                )
            self._end = EnvWorkerError(self.env_indices, called, problem)
        self.kill()
        self._channel.close()
        return self._end


def check_same(env_index: int, old: EnvDescription, new: EnvDescription) -> None:
    """Raises EnvCheckError if an env that was made anew has other agents or spaces."""
    if (new.possible_agents, new.spaces) != (old.possible_agents, old.spaces):
        raise EnvCheckError(f"env {env_index} was made anew with other agents or spaces: {new.spaces!r:.200} instead "
                            f"of {old.spaces!r:.200}")  # fmt: skip


def error_of(failure: Failure) -> Exception:
    """The error that an env has raised, with what is known of it as notes."""
    error: Exception
    try:
        error = pickle.loads(failure.error)
    except Exception:  # its class may raise whatever it likes when it is made anew
        last_line = failure.text.strip().rpartition("\n")[2]
        error = RemoteEnvError(failure.env_index, last_line)
    error.add_note(f"fastmarl: raised by {failure.call} of env {failure.env_index}")
    error.add_note(f"in its worker process:\n{failure.text}")
    return error


def _pickled(plan: WorkerPlan) -> bytes:
    try:
        pickler: Any = import_module("cloudpickle")  # takes functions of scripts and notebooks, and lambdas
    except ImportError:
        pickler = pickle
    try:
        return pickler.dumps(plan)
    except Exception as error:
        raise ConfigError(
            f"env and env_config can't be sent to a worker process: {error}; let env be a class or function at the top "
            f'of a module, or install cloudpickle, or set env_worker_start_method="fork"'
        ) from error

"""The runner side of worker processes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from fastmarl.core.envs.remote import EnvDescription
from fastmarl.core.errors import EnvCheckError, EnvTimeoutError, EnvWorkerError, RemoteEnvError
from fastmarl.core.processes.child import START_TIMEOUT_S, ChildProcess, pickled, with_interrupts_deferred
from fastmarl.core.processes.protocol import FIRST
from fastmarl.core.processes.scriptless import mentions_script
from fastmarl.core.vector.workers.shm import EnvSlots, WorkerMemory, new_memory_file
from fastmarl.core.vector.workers.worker import CALL, REMAKE, SPACES, EnvFailure, WorkerPlan, run_worker

UNSENT = (
    "env and env_config",
    'define env as a class or function at module level, install cloudpickle, or set env_worker_start_method="fork"',
)


@dataclass(frozen=True)
class WorkerOptions:
    """Options of worker processes.

    Attributes:
        start_method: "spawn" or "fork".
        step_timeout_s: Timeout in seconds for a worker to step (or reset) its envs.
    """

    start_method: str
    step_timeout_s: float


class WorkerProcess(ChildProcess):
    """A worker process. After `start()` and `finish_start()` it accepts messages.

    Attributes:
        env_indices: Indices of its envs.
        descriptions: Descriptions of its envs.
        is_started: True if the last start was completed; otherwise call `restart()`.

    Raises:
        ConfigError: If the plan cannot be sent to another process.
    """

    gone = EnvWorkerError

    def __init__(self, plan: WorkerPlan, options: WorkerOptions):
        self._plan = plan
        self._options = options
        self._sent_plan = pickled(plan, *UNSENT) if options.start_method == "spawn" else plan
        self._has_script = not isinstance(self._sent_plan, bytes) or mentions_script(self._sent_plan)
        self.env_indices = [context.vector_index for context in plan.contexts]
        self.descriptions: list[EnvDescription] = []
        self.is_started = False
        self._prepare()

    def _prepare(self) -> None:
        self._memory: WorkerMemory | None = None
        name = f"fastmarl-envs-{self._plan.first}"
        self._open(
            self._options.start_method,
            run_worker,
            self._sent_plan,
            name=name,
            daemon=True,
            has_script=self._has_script,
        )

    def finish_start(self) -> None:
        """Wait until the process has created its envs, and share memory with it.

        Raises:
            EnvCheckError: If agents or spaces of the envs have changed. Errors of a constructor propagate.
        """
        self._channel.set_timeout(START_TIMEOUT_S)
        new = self.recv(FIRST)
        for env_index, before, now in zip(self.env_indices, self.descriptions or new, new, strict=True):
            check_same(env_index, before, now)
        self.descriptions = new
        with_interrupts_deferred(self._share_memory)
        self._channel.set_timeout(self._options.step_timeout_s)
        self.is_started = True

    def _share_memory(self) -> None:
        assert self.descriptions is not None
        fd = new_memory_file(self.descriptions)
        try:
            self._memory = WorkerMemory(self.descriptions, fd)
            self._channel.send_file(fd)
        finally:
            os.close(fd)

    def restart(self) -> None:
        """Recreate the process and its envs after an error or an interrupt. Raises like `finish_start()`."""
        self.is_started = False
        self.hang_up()
        self.kill()
        self._prepare()
        self.start()
        self.finish_start()

    @property
    def slots(self) -> list[EnvSlots]:
        """Slots of its envs, in order."""
        assert self._memory is not None, "its start is not finished"
        return self._memory.slots

    def seconds_left(self, sent_at: float) -> float:
        """Return the seconds left to answer a message sent at `sent_at` (a `monotonic()` time)."""
        return max(sent_at, self._answered_at) + self._options.step_timeout_s - monotonic()

    def call(self, index: int, name: str, args: tuple, kwargs: dict) -> Any:
        """Call a method of the env at `index`, or get an attribute."""
        return self.request(CALL + pickle.dumps((index, name, args, kwargs)))[0]

    def spaces(self, index: int, agent_id: Hashable) -> Any:
        """Return (observation space, action space) of an agent of the env."""
        return self.request(SPACES + pickle.dumps((index, agent_id)))

    def remake(self, index: int) -> None:
        """Recreate the env at `index`.

        Raises:
            EnvCheckError: If its agents or spaces have changed. Errors of its constructor propagate.
        """
        new = self.request(REMAKE + pickle.dumps(index))
        check_same(self.env_indices[index], self.descriptions[index], new)

    def end(self) -> None:
        super().end()
        self._memory = None

    def _failure(self, failure: EnvFailure) -> Exception:
        error = error_of(failure)
        if failure.call == "constructor" and not self._has_script:
            error.add_note("its worker process has not imported the script, as nothing sent to it refers to the script")
        return error

    def _loss(self, error: Exception | None) -> EnvWorkerError:
        if error is None:
            return EnvWorkerError(self.env_indices, None, "was closed")
        index = -1 if self._memory is None else int(self._memory.at[0])
        called = None if index < 0 else self.env_indices[index]
        if isinstance(error, TimeoutError):
            option = f"step_timeout_s={self._options.step_timeout_s}"
            problem = f"did not answer within {option if self._memory else START_TIMEOUT_S} s and was terminated"
            return EnvTimeoutError(self.env_indices, called, problem)
        return EnvWorkerError(self.env_indices, called, self.how_it_ended("creating its envs", self._memory is None))


def check_same(env_index: int, old: EnvDescription, new: EnvDescription) -> None:
    """Raise EnvCheckError if a recreated env has different agents or spaces."""
    if (new.possible_agents, new.spaces) != (old.possible_agents, old.spaces):
        raise EnvCheckError(f"env {env_index} was recreated with different agents or spaces: expected "
                            f"{old.spaces!r:.200}, got {new.spaces!r:.200}")  # fmt: skip


def error_of(failure: EnvFailure) -> Exception:
    """Return the error raised by an env, with notes on its origin."""
    error: Exception
    try:
        error = pickle.loads(failure.error)
    except Exception:  # its class may raise anything when it is unpickled
        last_line = failure.text.strip().rpartition("\n")[2]
        error = RemoteEnvError(failure.env_index, last_line)
    error.add_note(f"fastmarl: raised by {failure.call} of env {failure.env_index}")
    error.add_note(f"in its worker process:\n{failure.text}")
    return error

"""A worker process, which creates and steps some envs of the runner. It imports neither torch nor numba."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.envs.base import env_spaces, named_agents
from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.form import check_spaces, class_of, possible_agents_of
from fastmarl.core.envs.registry import env_creator
from fastmarl.core.envs.remote import EnvDescription
from fastmarl.core.envs.resumable import supports_checkpoint
from fastmarl.core.envs.states import state_space_of
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.exits import as_error, exits_as_errors
from fastmarl.core.native._slots import has_any_info
from fastmarl.core.processes.channel import Channel
from fastmarl.core.processes.protocol import CLOSE, DONE, FAILED, FIRST, end_with, pickled_error
from fastmarl.core.processes.scriptless import import_script, mentions_script
from fastmarl.core.vector.workers.shm import WorkerMemory

STEP, RESET, REMAKE, CALL, SPACES = b"s", b"r", b"m", b"c", b"p"  # first byte of a message to a worker


@dataclass
class WorkerPlan:
    """Description of the envs of a worker.

    Attributes:
        env: Argument of `env_creator()`, valid in other processes.
        contexts: Contexts of its envs.
        records_states: True if global states are recorded.
        entropy: Seed of the global generators of Python and NumPy; None for seeds that differ from run to run.
        parent: Process id of the runner.
    """

    env: Any
    contexts: list[EnvContext]
    records_states: bool
    entropy: list[int] | None
    parent: int

    @property
    def first(self) -> int:
        """Index of the first env in the runner."""
        return self.contexts[0].vector_index


@dataclass
class EnvFailure:
    """Description of an env error that can be sent to the runner.

    Attributes:
        env_index: Index of the env in the runner.
        call: Name of the function that failed.
        error: The pickled error; empty if it cannot be pickled.
        text: Traceback of the error.
    """

    env_index: int
    call: str
    error: bytes
    text: str

    @classmethod
    def of(cls, error: BaseException, env_index: int, call: str) -> EnvFailure:
        """Describe the error that is being handled."""
        return cls(env_index, call, pickled_error(error), "".join(traceback.format_exception(error)))


@dataclass
class Extra:
    """Parts of an env result that are sent outside shared memory; None for all other parts.

    Attributes:
        result: The complete result, in a tuple; shared memory then contains no part of it.
        infos: Infos, keyed by agent.
        state: The global state of the env, in a tuple.
        failure: An error that replaces the result.
    """

    result: tuple[Any] | None = None
    infos: dict | None = None
    state: tuple[Any] | None = None
    failure: EnvFailure | None = None


def describe(env: Any, env_index: int, *, records_state: bool) -> EnvDescription:
    """Return the description of an env for the runner."""
    agents = possible_agents_of(env)
    return EnvDescription(
        class_of(env),
        agents,
        named_agents(env),
        {agent: env_spaces(env, agent) for agent in agents},
        getattr(env, "observation_space", None),
        getattr(env, "action_space", None),
        state_space_of(env, env_index) if records_state else None,
        supports_checkpoint(env),
    )


def run_worker(plan: WorkerPlan | bytes, channel: Channel) -> None:
    """Run a worker; this is the main function of its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner handles it and closes its workers
    with contextlib.suppress(EOFError):  # raised when the runner is gone
        if isinstance(plan, bytes):
            try:
                plan = pickle.loads(plan)
            except Exception as error:
                _refuse(channel, EnvFailure.of(error, -1, "unpickling env and env_config"))
        assert isinstance(plan, WorkerPlan)
        end_with(plan.parent)
        Worker(plan, channel).run()


def _refuse(channel: Channel, failure: EnvFailure) -> NoReturn:
    channel.send(FIRST, FAILED + pickle.dumps(failure))
    sys.exit(0)


class Worker:
    """Creates envs, and executes messages from the runner."""

    def __init__(self, plan: WorkerPlan, channel: Channel):
        self._plan = plan
        self._channel = channel
        self._envs: list[Any] = [None] * len(plan.contexts)
        self._memory: Any = None
        self._handlers: dict[bytes, Callable[[bytes], Any]] = {
            STEP: self._step,
            RESET: self._reset,
            REMAKE: self._remake,
            CALL: self._call,
            SPACES: self._spaces,
        }

    def run(self) -> None:
        """Execute messages until CLOSE, or until the runner is gone."""
        channel = self._channel
        rng = np.random.SeedSequence(self._plan.entropy)
        random.seed(int(rng.generate_state(1)[0]))
        np.random.seed(rng.generate_state(4))  # noqa: NPY002  (envs that use the global generator)
        try:
            indices = range(len(self._envs))
            descriptions = [self._guarded("constructor", index, self._make, index) for index in indices]
            channel.send(FIRST, DONE + pickle.dumps(descriptions))
            fd = channel.recv_file()
            self._memory = WorkerMemory(descriptions, fd)
            os.close(fd)
            number = self._work()
        except _EnvError as error:
            _refuse(channel, error.failure)
        finally:
            failure = self._close()
        channel.send(number, DONE if failure is None else FAILED + pickle.dumps(failure))

    def _work(self) -> int:
        """Answer each message with its number; return the number of CLOSE."""
        while True:
            number, message = self._channel.recv()
            if message == CLOSE:
                return number
            if mentions_script(message):
                self._import_script()
            try:
                answer = self._handlers[message[:1]](message[1:])
                answer = DONE if answer is None else DONE + self._pickled(answer)
            except _EnvError as error:
                answer = FAILED + pickle.dumps(error.failure)
            self._channel.send(number, answer)

    def _import_script(self) -> None:
        """Import the user script, to which the message refers; keep the global generators and the SIGINT handler."""
        states = random.getstate(), np.random.get_state()  # noqa: NPY002
        import_script()
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _make(self, index: int) -> EnvDescription:
        context = self._plan.contexts[index]
        env = as_multi_agent_env(env_creator(self._plan.env)(context))
        if isinstance(env, ArrayEnv):
            raise ConfigError(f'gym_env_vectorize_mode="async" is for single envs, but {type(env).__name__} is a batch '
                              f'of envs; set it to "sync"')  # fmt: skip
        check_spaces(env, context.vector_index)
        description = describe(env, context.vector_index, records_state=self._plan.records_states)
        self._envs[index] = env
        return description

    def _remake(self, message: bytes) -> EnvDescription:
        """Replace an env with a new one. If that fails, every use of the env fails until a later attempt succeeds."""
        index = pickle.loads(message)
        old, self._envs[index] = self._envs[index], None
        with contextlib.suppress(Exception), exits_as_errors():
            old.close()
        return self._guarded("constructor", index, self._make, index)

    def _reset(self, message: bytes) -> dict[int, Extra] | None:
        """Reset some envs; return the parts of results that do not fit in shared memory."""
        return self._each("reset()", self._reset_one, pickle.loads(message))

    def _reset_one(self, index: int, seed: int | None) -> Extra | None:
        result = self._envs[index].reset(seed=seed)
        return self._extra(index, result, 2, self._memory.slots[index].results.write_reset)

    def _step(self, message: bytes) -> dict[int, Extra] | None:
        """Step some envs; the message contains the actions that do not fit in shared memory."""
        indices, given = pickle.loads(message)
        slots = self._memory.slots
        actions = ((index, given[index] if index in given else slots[index].actions.read()) for index in indices)
        return self._each("step()", self._step_one, actions)

    def _step_one(self, index: int, actions: dict) -> Extra | None:
        result = self._envs[index].step(actions)
        return self._extra(index, result, 5, self._memory.slots[index].results.write)

    def _each(
        self, call: str, function: Callable[[int, Any], Extra | None], given: Iterable[tuple[int, Any]]
    ) -> dict[int, Extra] | None:
        """Call `function` for each env; return {index: extra parts of the result, or a failure}, or None if empty."""
        extras = {}
        for index, argument in given:
            try:
                extra = self._guarded(call, index, function, index, argument)
            except _EnvError as error:
                extra = Extra(failure=error.failure)
            if extra is not None:
                extras[index] = extra
        return extras or None

    def _extra(self, index: int, result: Any, size: int, write: Callable[[tuple], bool]) -> Extra | None:
        """Write a result, normally a tuple of `size` elements, to shared memory; return the parts that do not fit."""
        fits = type(result) is tuple and len(result) == size and isinstance(result[-1], dict) and write(result)
        has_infos = fits and has_any_info(result[-1])
        state = None
        if self._plan.records_states:
            env_state = self._envs[index].state()
            state = None if self._memory.slots[index].results.write_state(env_state) else (env_state,)
        if fits and not has_infos and state is None:
            return None
        return Extra(None if fits else (result,), result[-1] if has_infos else None, state)

    def _call(self, message: bytes) -> tuple[Any]:
        """Call a method of an env, or get an attribute."""
        index, name, args, kwargs = pickle.loads(message)

        def called() -> Any:
            value = getattr(self._envs[index], name)
            return value(*args, **kwargs) if callable(value) else value

        return (self._guarded(f"{name}()", index, called),)

    def _spaces(self, message: bytes) -> Any:
        index, agent = pickle.loads(message)
        return self._guarded("the spaces", index, env_spaces, self._envs[index], agent)

    def _guarded(self, call: str, index: int, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of an env, keeping the env index in shared memory in case the process dies during the call.

        Raises:
            _EnvError: If the function failed.
        """
        if self._memory is not None:
            self._memory.at[0] = index
        try:
            return function(*args)
        except (Exception, SystemExit) as raised:
            error = as_error(raised)
            raise _EnvError(EnvFailure.of(error, self._plan.first + index, call)) from error
        finally:
            if self._memory is not None:
                self._memory.at[0] = -1

    def _pickled(self, answer: Any) -> bytes:
        """Pickle an answer; a value that cannot be pickled is reported as a failure of its env."""
        try:
            return pickle.dumps(answer)
        except Exception as error:
            if not isinstance(answer, dict):
                raise _EnvError(EnvFailure.of(error, self._plan.first, "pickling a value")) from error
        for index, extra in answer.items():
            try:
                pickle.dumps(extra)
            except Exception as error:
                answer[index] = Extra(failure=EnvFailure.of(error, self._plan.first + index, "pickling the result"))
        return pickle.dumps(answer)

    def _close(self) -> EnvFailure | None:
        """Close all envs; return the first failure."""
        first = None
        for index, env in enumerate(self._envs):
            if hasattr(env, "close"):
                try:
                    with exits_as_errors():
                        env.close()
                except Exception as error:
                    first = first or EnvFailure.of(error, self._plan.first + index, "close()")
        return first


class _EnvError(Exception):
    def __init__(self, failure: EnvFailure):
        super().__init__(failure)
        self.failure = failure

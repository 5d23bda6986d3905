"""Hosts in local processes, which pass batches and weights through shared memory."""

import contextlib
import os
import pickle
import select
import signal
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import torch

from fastmarl.core.errors import (
    ConfigError,
    RemoteSamplerError,
    RunnerStoppedError,
    SamplerProcessError,
    SamplerTimeoutError,
)
from fastmarl.core.errors.exits import as_error
from fastmarl.core.processes.channel import Channel
from fastmarl.core.processes.child import START_TIMEOUT_S, ChildProcess, pickled, with_interrupts_deferred
from fastmarl.core.processes.protocol import DONE, FAILED, FIRST, end_with
from fastmarl.distributed.actors import ActorLost, Actors
from fastmarl.distributed.host import HostFailure, HostReady, HostReport, RunnerHost, RunnerPlan
from fastmarl.distributed.parcels import Places, pack, unpack
from fastmarl.distributed.shared_weights import SharedWeights, form_of, new_weights_file

UNSENT = (
    "config and make_batch",
    'define their functions and classes at the top level of a module, install cloudpickle, or set start_method="fork"',
)


class HostProcess(ChildProcess):
    """A process with a `RunnerHost`, started by calling `open()` and then `start()`."""

    gone = ActorLost

    def open(self, plan: RunnerPlan, start_method: str) -> None:
        """Prepare the process.

        Raises:
            ConfigError: If the plan cannot be sent to another process.
        """
        sent = pickled(plan, *UNSENT) if start_method == "spawn" else plan
        self._is_ready = False
        self._files, self._other_files = Channel.pair()
        others = self._other_files, os.getpid()
        name = f"fastmarl-sampler-{plan.config.worker_index}"
        # Not daemonic: its runner may have worker processes for envs.
        self._open(start_method, run_host, sent, *others, name=name, daemon=False)

    def start(self) -> None:
        self._channel.set_timeout(START_TIMEOUT_S)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited until the child ignores SIGINT
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._other_files.sock.close()

    def read(self) -> None:
        """Read from the socket, recording whether the process has exited."""
        with contextlib.suppress(ActorLost):  # `recv()` reports it
            self._read()

    def ready(self, weights: SharedWeights) -> None:
        """Send the weights file to a process whose runner was created."""
        self._is_ready = True
        with contextlib.suppress(OSError):  # it exited, which `recv()` will report
            self._channel.send_file(weights.fd)

    def batch(self, places: Places) -> Any:
        """Return the batch of the last report."""
        return with_interrupts_deferred(lambda: unpack(self._files.recv_file(), places))

    def hang_up(self) -> None:
        super().hang_up()
        self._files.close()
        self._other_files.sock.close()

    def _failure(self, failure: HostFailure) -> HostFailure:
        return failure

    def _loss(self, error: Exception | None) -> ActorLost:
        if isinstance(error, EOFError):
            return ActorLost(self.how_it_ended("creating its runner", not self._is_ready))
        return ActorLost("was closed" if error is None else "accepted no message and was terminated")


@dataclass(frozen=True)
class Answer:
    """A reference to the result of a call."""

    process: HostProcess
    number: int
    method: str


class Processes(Actors):
    """The transport to local processes; see `Actors`.

    The latest weights are in memory shared by all processes, so calls do not carry them: a process checks for newer
    weights before each call.

    Args:
        start_method: "spawn" or "fork".
    """

    runner_name = "process {} of the sampler"
    lost = SamplerProcessError
    late = SamplerTimeoutError

    def __init__(self, start_method: str):
        self._start_method = start_method
        self._begun: set[HostProcess] = set()
        self._memory: SharedWeights | None = None
        self._is_closed = False

    def foreign(self, index: int, problem: str) -> Exception:
        return RemoteSamplerError(index, f"has raised {problem}")

    def start(self) -> HostProcess:
        """Return a handle; the process starts with the call of `start`, so that a fork inherits the plan."""
        return HostProcess()

    def call(self, handle: HostProcess, method: str, *args: Any) -> Hashable:
        """Send a call without the weights and their number, which are in shared memory."""
        if method != "start":
            return Answer(handle, handle.send(pickle.dumps((method, args[2:]))), method)
        if self._is_closed:  # for example by a signal handler
            raise RunnerStoppedError("the sampler was closed")
        handle.open(args[-1], self._start_method)
        self._begun.add(handle)
        handle.start()
        return Answer(handle, FIRST, method)

    def publish(self, weights: Mapping[str, Any], seq_no: int) -> None:
        self.weights.write(weights, seq_no)

    def wait(self, references: Sequence[Answer], num_returns: int, timeout_s: float) -> Sequence[Answer]:
        end = monotonic() + timeout_s
        while True:
            answered = [each for each in references if each.process.has_answer(each.number)]
            if answered or not self._read({each.process for each in references}, max(0.0, end - monotonic())):
                return answered[:num_returns]

    def _read(self, processes: set[HostProcess], timeout_s: float) -> bool:
        """Read messages from the processes, waiting if necessary; return False if none has arrived."""
        by_socket = {process.sock.fileno(): process for process in processes}
        poll = select.poll()
        for socket in by_socket:
            poll.register(socket, select.POLLIN)
        ready = poll.poll(1e3 * timeout_s)
        for socket, _ in ready:
            by_socket[socket].read()
        return bool(ready)

    def is_answered(self, reference: Answer) -> bool:
        return bool(self.wait([reference], 1, 0.0))

    def get(self, reference: Answer) -> Any:
        process = reference.process
        try:
            value = process.recv(reference.number)
        finally:
            if reference.method == "stop":
                process.hang_up()
                process.end()
        if isinstance(value, HostReport):
            return replace(value, batch=process.batch(value.batch))
        if isinstance(value, HostReady):
            process.ready(self._weights_of(value))
        return value

    def _weights_of(self, start: HostReady) -> SharedWeights:
        """Return the weights memory, creating it for the first process."""
        form = start.form
        assert form is not None
        if self._memory is None:
            self._memory = with_interrupts_deferred(lambda: SharedWeights(form, new_weights_file(form)))
        elif form != self._memory.form:
            raise ConfigError(f"expected weights of equal names, shapes and dtypes in all processes of the sampler, "
                              f"got {form!r:.200} and {self._memory.form!r:.200}")  # fmt: skip
        return self._memory

    @property
    def weights(self) -> SharedWeights:
        """Shared memory of the latest weights, which exists once a process has started."""
        assert self._memory is not None
        return self._memory

    def kill(self, handle: HostProcess) -> None:
        if handle in self._begun:
            handle.hang_up()
            handle.kill()
            self._begun.discard(handle)  # another thread may have closed all of them meanwhile

    def close(self) -> None:
        """Terminate all processes; processes waiting for a call close their envs first."""
        self._is_closed = True
        begun = list(self._begun)
        try:
            for process in begun:
                process.hang_up()
            for process in begun:
                process.end()
        except BaseException:  # another interrupt
            for process in begun:
                process.kill()
            raise
        finally:
            if self._memory is not None:
                self._memory.close()


WAY_OUT = "define their classes at the top level of a module, or install cloudpickle"


def run_host(plan: RunnerPlan | bytes, channel: Channel, files: Channel, parent: int) -> None:
    """Run a host. This is the main function of the process.

    Args:
        plan: Plan of the runner, pickled if the process was not forked.
        channel: Channel for calls and their results; the weights file arrives before the first call.
        files: Channel for batch files.
        parent: Process id of the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    end_with(parent)
    torch.set_num_threads(1)  # the other cores are for other processes
    host = RunnerHost()
    try:
        with contextlib.suppress(EOFError):  # the parent exited or closed the channel
            ready = _answer(lambda: pickled(_start(host, plan), "the modules", WAY_OUT))
            channel.send(FIRST, ready)
            if ready.startswith(DONE):
                _serve(host, channel, files)
    finally:
        with contextlib.suppress(Exception):  # no process remains that could report it
            host.stop()


def _start(host: RunnerHost, plan: RunnerPlan | bytes) -> HostReady:
    if isinstance(plan, bytes):
        plan = pickle.loads(plan)
    assert isinstance(plan, RunnerPlan)
    ready = host.start(plan)
    return replace(ready, form=form_of(host.runner.module.get_state()))


def _answer(pickled_result: Callable[[], bytes]) -> bytes:
    try:
        return DONE + pickled_result()
    except (Exception, SystemExit) as raised:
        return FAILED + pickle.dumps(HostFailure.of(as_error(raised)))


def _serve(host: RunnerHost, channel: Channel, files: Channel) -> None:
    """Execute calls and send each result with the number of its call, until `stop` is called.

    Raises:
        EOFError: If the parent exited.
    """
    weights = SharedWeights(form_of(host.runner.module.get_state()), channel.recv_file())
    method = ""
    while method != "stop":
        number, message = channel.recv()
        method, args = pickle.loads(message)
        channel.send(number, _answer(lambda: pickle.dumps(_call(host, weights, files, method, args))))  # noqa: B023


def _call(host: RunnerHost, weights: SharedWeights, files: Channel, method: str, args: tuple) -> Any:
    """Execute a call with the latest weights. If it returns a batch, send its file before the report."""
    seq_no, newest = weights.read(newer_than=host.weights_seq_no) or (host.weights_seq_no, None)
    result = host.call(method, seq_no, newest, *args)
    if isinstance(result, HostReport):
        fd, places = pack(result.batch)
        try:
            files.send_file(fd)
        finally:
            os.close(fd)
        result = replace(result, batch=places)
    return result

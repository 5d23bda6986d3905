"""A process that samples: it has a runner, and hands a batch over whenever it is told to sample."""

import contextlib
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.exits import as_error
from fastmarl.core.processes.channel import Channel
from fastmarl.core.processes.child import pickled
from fastmarl.core.processes.protocol import CLOSE, DONE, FAILED, FIRST, end_with, pickled_error
from fastmarl.core.runner.increments import begin_increments, take_increment
from fastmarl.core.runner.metrics import Increment
from fastmarl.core.runner.runner import MultiAgentEnvRunner
from fastmarl.distributed.background.parcels import Places, pack
from fastmarl.distributed.background.weights import Form, SharedWeights, form_of

SAMPLE = b"s"  # the message
NO_VERSION = -1
MakeBatch = Callable[[list[MultiAgentEpisode]], Any]


@dataclass
class SamplerPlan:
    """What a process is to do.

    Attributes:
        process: its number, from 0.
        config: of its runner.
        make_batch: what is made of the episodes of one call.
        parent: process id of the learner.
        state: what its runner goes on with, see `MultiAgentEnvRunner.set_state()`.
    """

    process: int
    config: EnvRunnerConfig
    make_batch: MakeBatch
    parent: int
    state: dict[str, Any] = field(default_factory=dict)


@dataclass
class SamplerReady:
    """What a process tells when its runner is made.

    Attributes:
        form: of the runner's weights.
        module: the runner's modules, pickled, if it is process 0.
    """

    form: Form
    module: bytes | None


@dataclass
class BatchReport:
    """What a process tells of a batch; the batch itself comes as a file.

    Attributes:
        version: of the weights that acted.
        places: of the batch's pieces in its file.
        increment: what the runner has counted.
        state: what another runner would go on with, if this one were lost.
    """

    version: int
    places: Places
    increment: Increment
    state: dict[str, Any]


@dataclass
class SamplerFailure:
    """An error in the process.

    Attributes:
        during: what it was doing.
        error: the error, pickled; empty if that can't be done.
        text: its traceback.
    """

    during: str
    error: bytes
    text: str

    @classmethod
    def of(cls, error: BaseException, during: str) -> "SamplerFailure":
        """Of the error that is being handled."""
        return cls(during, pickled_error(error), "".join(traceback.format_exception(error)))


def run_sampler(plan: SamplerPlan | bytes, channel: Channel, files: Channel) -> None:
    """The main function of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the learner sees to the end of all
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with contextlib.suppress(EOFError):  # the learner is gone
        if isinstance(plan, bytes):
            try:
                plan = pickle.loads(plan)
            except Exception as error:
                _refuse(channel, SamplerFailure.of(error, "unpickling what it is to do"))
        assert isinstance(plan, SamplerPlan)
        end_with(plan.parent)
        torch.set_num_threads(1)  # the other cores are for other processes
        try:
            worker = SamplerWorker(plan, channel, files)
        except Exception as error:
            _refuse(channel, SamplerFailure.of(error, "making its runner"))
        worker.run()


def _refuse(channel: Channel, failure: SamplerFailure) -> NoReturn:
    channel.send(FIRST, FAILED + pickle.dumps(failure))
    sys.exit(0)


class SamplerWorker:
    """Has a runner, and samples when it is told to."""

    def __init__(self, plan: SamplerPlan, channel: Channel, files: Channel):
        self._channel = channel
        self._files = files
        self._make_batch = plan.make_batch
        self._runner = MultiAgentEnvRunner(plan.config)
        try:
            begin_increments(self._runner)
            self._runner.set_state(plan.state)
            self._form = form_of(self._runner.module.get_state())
            way_out = "let their classes stand at the top of a module, or install cloudpickle"
            module = pickled(self._runner.module, "the modules", way_out) if plan.process == 0 else None
            self._start = DONE + pickle.dumps(SamplerReady(self._form, module))
        except BaseException:
            self._runner.stop()
            raise
        self._version = NO_VERSION

    def run(self) -> None:
        """Work until told to close, or until the learner is gone."""
        failure = None
        try:
            self._channel.send(FIRST, self._start)
            self._weights = SharedWeights(self._form, self._channel.recv_file())
            number = self._work()
        finally:
            try:
                self._runner.stop()
            except Exception as error:
                failure = SamplerFailure.of(error, "closing its envs")
        self._channel.send(number, DONE if failure is None else FAILED + pickle.dumps(failure))

    def _work(self) -> int:
        """Answer each message under its own number; returns that of CLOSE."""
        while True:
            number, message = self._channel.recv()
            if message == CLOSE:
                return number
            try:
                answer = DONE + pickle.dumps(self._sample())
            except (Exception, SystemExit) as raised:
                answer = FAILED + pickle.dumps(SamplerFailure.of(as_error(raised), "sampling"))
            self._channel.send(number, answer)

    def _sample(self) -> BatchReport:
        """Sample with the newest weights. The file of the batch is on its way before what is told of it."""
        newest = self._weights.read(newer_than=self._version)
        if newest is not None:
            self._version, weights = newest
            self._runner.set_weights(dict(weights), self._version)
        fd, places = pack(self._make_batch(self._runner.sample()))
        try:
            self._files.send_file(fd)
        finally:
            os.close(fd)
        state = self._runner.get_state(["env_to_module_connector", "num_env_steps_sampled_lifetime"])
        return BatchReport(self._version, places, take_increment(self._runner), state)

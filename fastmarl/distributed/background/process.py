"""A process that samples, as the learner sees it."""

import os
import pickle
import signal
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from fastmarl.core.errors import ConfigError, RemoteSamplerError, SamplerProcessError, SamplerTimeoutError
from fastmarl.core.processes.channel import Channel
from fastmarl.core.processes.child import START_TIMEOUT_S, ChildProcess, pickled, with_interrupts_deferred
from fastmarl.core.processes.protocol import FIRST
from fastmarl.distributed.background.parcels import unpack
from fastmarl.distributed.background.weights import SharedWeights
from fastmarl.distributed.background.worker import (
    SAMPLE,
    BatchReport,
    SamplerFailure,
    SamplerPlan,
    SamplerReady,
    run_sampler,
)

UNSENT = (
    "config and make_batch",
    "let functions and classes in them stand at the top of a module, or install cloudpickle, or set "
    'start_method="fork"',
)


@dataclass
class Sample:
    """A batch and what is told of it."""

    batch: Any
    told: BatchReport


class SamplerProcess(ChildProcess):
    """One process. After `start()`, `finish_start()` and `share()` it samples as often as it is permitted to.

    Args:
        plan: what it does.
        start_method: "spawn" or "fork".

    Attributes:
        process: its number, from 0.
        restarts: since the last batch that was taken.

    Raises:
        ConfigError: the plan can't be sent to another process.
    """

    gone = SamplerProcessError

    def __init__(self, plan: SamplerPlan, start_method: str):
        self.process = plan.process
        self.restarts = 0
        self._plan = plan
        self._start_method = start_method
        self._prepare()

    def _prepare(self) -> None:
        self._timeout_s = START_TIMEOUT_S
        self._is_started = False
        self._numbers_of_batches: deque[int] = deque()
        plan = pickled(self._plan, *UNSENT) if self._start_method == "spawn" else self._plan
        self._files, self._other_files = Channel.pair()
        name = f"fastmarl-sampler-{self.process}"
        # Not daemonic: its runner may have worker processes for envs.
        self._open(self._start_method, run_sampler, plan, self._other_files, name=name, daemon=False)

    def start(self) -> None:
        """Start the process."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the process inherits that until it ignores it
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._other_files.sock.close()

    def finish_start(self) -> SamplerReady:
        """Wait until it has made its runner; what the runner's constructor raises comes through."""
        self._channel.set_timeout(START_TIMEOUT_S)
        start = self.recv(FIRST)
        self._is_started = True
        return start

    def share(self, weights: SharedWeights, start: SamplerReady) -> None:
        """Give it the weights that it is to act with.

        Raises:
            ConfigError: those of its modules have another form.
        """
        if start.form != weights.form:
            raise ConfigError(f"process {self.process} of the sampler has modules with other weights than process 0: "
                              f"{start.form!r:.200} instead of {weights.form!r:.200}")  # fmt: skip
        self._channel.send_file(weights.fd)

    def restart(self, weights: SharedWeights) -> None:
        """Start another process for what this one did, with seeds that were never used. No batch is permitted to it
        yet. Raises as `finish_start()` and `share()` do."""
        incarnation = self._plan.config.incarnation + 1
        self._plan = replace(self._plan, config=replace(self._plan.config, incarnation=incarnation))
        self.hang_up()
        self.kill()
        self._prepare()
        self.start()
        self.share(weights, self.finish_start())

    @property
    def connector_state(self) -> dict[str, Any]:
        """What the runner's connectors had learned when it made the last batch that was taken."""
        return self._plan.state.get("env_to_module_connector", {})

    @property
    def n_permitted(self) -> int:
        """Batches that it may still make, or has made, and that were not taken."""
        return len(self._numbers_of_batches)

    def permit(self, n: int) -> None:
        """See that it may make so many batches."""
        while self.n_permitted < n:
            self._numbers_of_batches.append(self.send(SAMPLE))

    def take(self, timeout_s: float) -> Sample:
        """The next batch.

        Raises:
            SamplerProcessError, SamplerTimeoutError: the process is gone now. What it has raised comes through.
        """
        self._timeout_s = timeout_s
        if self._end is None:
            self._channel.set_timeout(timeout_s)
        told: BatchReport = self.recv(self._numbers_of_batches[0])
        batch = with_interrupts_deferred(lambda: unpack(self._files.recv_file(), told.places))
        self._numbers_of_batches.popleft()
        self.restarts = 0
        self._plan = replace(self._plan, state=told.state)
        return Sample(batch, told)

    def hang_up(self) -> None:
        super().hang_up()
        self._files.close()
        self._other_files.sock.close()

    def _failure(self, told: SamplerFailure) -> Exception:
        error: Exception
        try:
            error = pickle.loads(told.error)
        except Exception:  # its class may raise whatever it likes when it is made anew
            last_line = told.text.strip().rpartition("\n")[2]
            error = RemoteSamplerError(self.process, f"has raised {last_line}")
        error.add_note(
            f"fastmarl: raised in process {self.process} of the sampler (pid {self.pid}), while {told.during}"
        )
        error.add_note(f"there:\n{told.text}")
        return error

    def _loss(self, error: Exception | None) -> SamplerProcessError:
        if error is None:
            return SamplerProcessError(self.process, "was closed")
        if isinstance(error, TimeoutError):
            return SamplerTimeoutError(self.process, f"did not answer within {self._timeout_s:g} s and was ended")
        return SamplerProcessError(self.process, self.how_it_ended("it had made its runner", not self._is_started))


def end_all(processes: list[SamplerProcess], owner: int) -> None:
    """End them when nobody has closed them."""
    if os.getpid() != owner:  # a fork of the learner has its objects, but not its processes
        return
    try:
        for process in processes:
            process.hang_up()
        for process in processes:
            process.end()
    except BaseException:  # another interrupt
        for process in processes:
            process.kill()
        raise

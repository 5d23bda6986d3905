"""Sampling in other processes, as a learner uses it."""

import atexit
import multiprocessing
import multiprocessing.util  # before our own exit function, which is then called before its own
import os
import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, Self

import torch

from fastmarl.core.batches.flat import columns
from fastmarl.core.config import CHOICES, EnvRunnerConfig, check_integer, check_timeout
from fastmarl.core.envs.registry import portable
from fastmarl.core.errors import ConfigError, RunnerStoppedError, SamplerProcessError
from fastmarl.core.modules.base import as_rl_module
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.processes.child import with_interrupts_deferred
from fastmarl.core.public import public
from fastmarl.core.runner.metrics import RunnerMetrics
from fastmarl.distributed.background.parcels import join_batches
from fastmarl.distributed.background.process import Sample, SamplerProcess, end_all
from fastmarl.distributed.background.weights import SharedWeights, Weights, new_weights_file
from fastmarl.distributed.background.worker import MakeBatch, SamplerPlan


@public("fastmarl.distributed")
class BackgroundSampler:
    """Samples in processes of its own while this one learns.

    ```python
    with BackgroundSampler(config) as sampler:
        for _ in range(100):
            batch = sampler.next()
            ...  # a step of training of sampler.module
            sampler.set_weights()
    ```

    Each process has a runner, of `worker_index` `config.worker_index` + 1 and up. A batch is what `make_batch` makes
    there of one call of `sample()`, in all processes; the processes take the newest weights before each call.

    Versions count the calls of `set_weights()`. A batch is handed out only if the newest version by then is at most
    `staleness` above the one that has acted in it. So with 0, sampling begins when `next()` is called, and the batches
    are those of runners in this process, bit-identical. With more, up to `staleness` batches are made beforehand;
    what has become too old by the time that it is wanted, since there were several new versions for a batch, is dropped
    and sampled anew. Sampling begins with the first `next()`.

    After an error, or an interrupt, in one of its methods the sampler is closed.

    Args:
        config: of the runners; `num_env_runners` is the number of processes, unless it is set.
        make_batch: episodes -> nested dict of arrays. It is called in the processes.
        join: makes one batch of those of several processes, a list in their order.
        processes: how many; 1 or more.
        staleness: see above; 0 or more.
        max_restarts: how often a process that has ended, or took too long, is replaced until it hands over a batch.
            The new one has another `incarnation`, so its seeds were never used.
        start_method: "spawn" or "fork"; don't fork a process that has used CUDA.
        timeout_s: seconds that a process is waited for; 0.001 or more.

    Attributes:
        module: the processes' modules, for this one to train.

    Raises:
        ConfigError: an option can't be right, or what the processes need can't be sent to them. What a runner's
            constructor raises there comes through.
    """

    module: MultiRLModule

    def __init__(
        self,
        config: EnvRunnerConfig,
        *,
        make_batch: MakeBatch = columns,
        join: Callable[[list[Any]], Any] = join_batches,
        processes: int = 1,
        staleness: int = 1,
        max_restarts: int = 0,
        start_method: str = "spawn",
        timeout_s: float = 300.0,
    ):
        _check_options(config, processes, staleness, max_restarts, start_method, timeout_s)
        self._join = join
        self._staleness = staleness
        self._max_restarts = max_restarts
        self._timeout_s = timeout_s
        self._metrics = RunnerMetrics(config.metrics_num_episodes_for_smoothing)
        self._version = 0
        self._version_of_batch = 0
        self._new = dict.fromkeys(("num_batches_dropped", "num_sampler_restarts"), 0)  # since the last report
        self._seconds_waited = 0.0
        self._processes: list[SamplerProcess] = []
        # Runs by itself only if this was never closed, or at the interpreter's end.
        self._finalizer = weakref.finalize(self, end_all, self._processes, os.getpid())
        atexit.register(self._finalizer)
        try:
            self._start(
                [_plan_of(config, make_batch, process, processes) for process in range(processes)], start_method
            )
        except BaseException:
            self._end()
            raise

    def _start(self, plans: list[SamplerPlan], start_method: str) -> None:
        for plan in plans:
            self._processes.append(SamplerProcess(plan, start_method))
            self._processes[-1].start()
        starts = [process.finish_start() for process in self._processes]
        assert starts[0].module is not None
        self.module = pickle.loads(starts[0].module)
        form = starts[0].form
        self._weights = with_interrupts_deferred(lambda: SharedWeights(form, new_weights_file(form)))
        self._weights.write(self.module.get_state(), self._version)
        for process, start in zip(self._processes, starts, strict=True):
            process.share(self._weights, start)

    def next(self, timeout_s: float | None = None) -> Any:
        """The next batch: of one call of `sample()` in each process, joined. It is yours: nobody writes to it any more.

        Args:
            timeout_s: seconds that each process is waited for; None: as the constructor was told.

        Raises:
            SamplerProcessError, SamplerTimeoutError: a process has ended, or not answered in time, and is not replaced.
            RunnerStoppedError: the sampler is closed.
            ConfigError: `timeout_s` can't be right; the sampler goes on.
            Exception: what an env, a module, a connector, a callback or `make_batch` has raised, with its traceback and
                the process's number as notes.
        """
        begun = perf_counter()
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        check_timeout("timeout_s", timeout_s)
        with self._closing_on_errors():
            for process in self._processes:
                process.permit(max(1, self._staleness))
            samples = [self._fresh(process, timeout_s) for process in self._processes]
            self._version_of_batch = min(sample.told.version for sample in samples)
            batch = self._join([sample.batch for sample in samples])
            for process in self._processes:
                process.permit(self._staleness)
        self._seconds_waited += perf_counter() - begun
        return batch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """`next()`, for ever."""
        return self.next()

    def set_weights(self, module: torch.nn.Module | Mapping[str, Any] | None = None) -> int:
        """Have the processes sample with these weights from their next call on.

        Args:
            module: all modules, or the one module that there is, or weights by module id as `get_state()` returns them,
                of some of the modules; None: `self.module`.

        Returns:
            Their version, above 0; the rows that were sampled with them have it as "weights_seq_no".

        Raises:
            ConfigError: they are those of other modules; nothing was changed.
            RunnerStoppedError: the sampler is closed.
        """
        weights = self._weights_of(self.module if module is None else module)
        with self._closing_on_errors():
            self._weights.write(weights, self._version + 1)
            self._version += 1
        return self._version

    def _weights_of(self, given: torch.nn.Module | Mapping[str, Any]) -> Weights:
        if isinstance(given, MultiRLModule):
            weights = given.get_state()
        elif isinstance(given, torch.nn.Module):
            if len(self.module) != 1:
                raise ConfigError(f"there are the modules {list(self.module)}, so give set_weights() all of them, or "
                                  f"weights by module id")  # fmt: skip
            weights = dict.fromkeys(self.module, as_rl_module(given).get_state())
        else:
            weights = dict(given)
        self._weights.check(weights)
        return weights

    def get_metrics(self) -> dict[str, Any]:
        """What `MultiAgentEnvRunner.get_metrics()` reports, of the runners of all processes together, as far as
        their batches were taken; "weights_seq_no" is of the last batch. Counts and sums are added, means go over all
        that was counted, those of episodes over the last `metrics_num_episodes_for_smoothing` of all.

        Besides, since the last report: "num_batches_dropped" (too old), "num_sampler_restarts" (processes replaced) and
        "seconds_waited" (in `next()`).
        """
        report = self._metrics.report(self._version_of_batch, self.module)
        report |= {**self._new, "seconds_waited": self._seconds_waited}
        self._new, self._seconds_waited = dict.fromkeys(self._new, 0), 0.0
        return report

    @property
    def connector_states(self) -> list[dict[str, Any]]:
        """By process, what its connectors had learned at its last batch, as `runner.env_to_module.get_state()` tells
        it; a runner's `env_to_module.merge_states()` makes one of them."""
        return [process.connector_state for process in self._processes]

    def close(self) -> None:
        """End all processes; the first error of an env's close() is raised. Closing twice is fine.

        A process that is sampling is waited for a little, and then ended.
        """
        if not self._finalizer.alive:
            return
        errors = []
        for process in self._processes:
            process.begin_close()
        for process in self._processes:
            try:
                process.end_close()
            except Exception as error:
                errors.append(error)
        self._end()
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    # Batches of one process.

    def _fresh(self, process: SamplerProcess, timeout_s: float) -> Sample:
        """Its next batch that is not too old."""
        while True:
            sample = self._taken(process, timeout_s)
            self._metrics.merge(sample.told.increment)
            if sample.told.version >= self._version - self._staleness:
                return sample
            self._new["num_batches_dropped"] += 1
            process.permit(max(1, self._staleness))

    def _taken(self, process: SamplerProcess, timeout_s: float) -> Sample:
        """Its next batch; if it is lost, that of another one that takes its place."""
        is_lost: SamplerProcessError | None = None
        while True:
            try:
                if is_lost is not None:
                    process.restart(self._weights)
                    process.permit(max(1, self._staleness))
                return process.take(timeout_s)
            except SamplerProcessError as error:
                is_lost = error
            if process.restarts >= self._max_restarts:
                is_lost.add_note(f"fastmarl: it was replaced max_restarts={self._max_restarts} times in a row")
                raise is_lost
            process.restarts += 1
            self._new["num_sampler_restarts"] += 1

    # The end.

    @contextmanager
    def _closing_on_errors(self) -> Iterator[None]:
        self._check_open()
        try:
            yield
        except BaseException:
            self._end()
            raise

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise RunnerStoppedError("this sampler was closed, or an error has ended it; make a new one")

    def _end(self) -> None:
        """End all processes, in whatever state they are."""
        self._finalizer()
        atexit.unregister(self._finalizer)
        if hasattr(self, "_weights"):
            self._weights.close()


def _plan_of(config: EnvRunnerConfig, make_batch: MakeBatch, process: int, n_processes: int) -> SamplerPlan:
    config = replace(
        config,
        env=portable(config.env),
        worker_index=config.worker_index + 1 + process,
        num_env_runners=n_processes if config.num_env_runners == 1 else config.num_env_runners,
    )
    return SamplerPlan(process, config, make_batch, os.getpid())


def _check_options(
    config: Any, processes: int, staleness: int, max_restarts: int, start_method: str, timeout_s: float
) -> None:
    if not isinstance(config, EnvRunnerConfig):
        raise ConfigError(f"expected an EnvRunnerConfig, got {type(config).__name__}")
    for name, value, least in (
        ("processes", processes, 1),
        ("staleness", staleness, 0),
        ("max_restarts", max_restarts, 0),
    ):
        check_integer(name, value, least=least)
    if start_method not in CHOICES["env_worker_start_method"]:
        raise ConfigError(
            f"start_method must be one of {list(CHOICES['env_worker_start_method'])}, got {start_method!r}"
        )
    check_timeout("timeout_s", timeout_s)
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            "a BackgroundSampler starts processes, but this one is daemonic, and multiprocessing lets such start none; "
            "make it with daemon=False"
        )

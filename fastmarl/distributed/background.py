"""Sampling in other processes, as a learner uses it."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Self

import torch

from fastmarl.core.batches.flat import columns
from fastmarl.core.config import CHOICES, EnvRunnerConfig, check_integer, check_timeout
from fastmarl.core.envs.registry import portable
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import ConfigError, RunnerStoppedError
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.processes.child import START_TIMEOUT_S
from fastmarl.core.public import public
from fastmarl.core.runner.metrics import RunnerMetrics
from fastmarl.distributed.fleet import Fleet
from fastmarl.distributed.host import HostReport
from fastmarl.distributed.owner import FleetOwner
from fastmarl.distributed.parcels import join_batches
from fastmarl.distributed.processes import Processes
from fastmarl.distributed.runners import RemoteRunner
from fastmarl.distributed.weights import weights_by_module

MakeBatch = Callable[[list[MultiAgentEpisode]], Any]


@public("fastmarl.distributed")
class BackgroundSampler(FleetOwner):
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
        timeout_s: seconds that a process is waited for in `next()`; 0.001 or more. To start, it has 300.

    Attributes:
        module: the processes' modules, for this one to train.

    Raises:
        ConfigError: an option can't be right, or what the processes need can't be sent to them. What a runner's
            constructor raises there comes through.
    """

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
        self._timeout_s = timeout_s
        self._metrics = RunnerMetrics(config.metrics_num_episodes_for_smoothing)
        self._version_of_batch = 0
        self._num_batches_dropped = 0  # since the last report
        self._seconds_waited = 0.0
        self._connector_states: list[dict[str, Any]] = [{} for _ in range(processes)]
        self._processes = Processes(start_method)
        fleet = Fleet(
            self._processes,
            replace(config, env=portable(config.env)),
            partial(_of_episodes, make_batch),
            max_restarts=max_restarts,
            sample_timeout_s=timeout_s,
            start_timeout_s=START_TIMEOUT_S,
        )
        super().__init__(fleet, processes)

    def next(self, timeout_s: float | None = None) -> Any:
        """The next batch: of one call of `sample()` in each process, joined. It is yours: nobody writes to it any more.

        Args:
            timeout_s: seconds that each process is waited for; None: as the constructor was told.

        Raises:
            SamplerProcessError, SamplerTimeoutError: a process has ended, or not answered in time, and is not replaced.
            RunnerStoppedError: the sampler is closed.
            RunnerBusyError: it is called within itself, as by a signal's handler, or while another thread is in it.
            ConfigError: `timeout_s` can't be right. After this error and the one before, the sampler goes on.
            Exception: what an env, a module, a connector, a callback or `make_batch` has raised, with its traceback and
                the process's number as notes.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        check_timeout("timeout_s", timeout_s)
        return self._fleet.run("next()", self._next, timeout_s=timeout_s)

    def _next(self, timeout_s: float) -> Any:
        begun = perf_counter()
        with self._closing_on_errors():
            self._fleet.wait_anew(timeout_s)
            self._fleet.feed(self._fleet.runners, {}, max(1, self._staleness))
            reports = [self._fresh(runner) for runner in self._fleet.runners]
            self._version_of_batch = min(report.weights_seq_no for report in reports)
            batch = self._join([report.batch for report in reports])
            self._fleet.feed(self._fleet.runners, {}, self._staleness)
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
            RunnerBusyError: a signal's handler calls this within itself; the call under way goes on.
            RunnerStoppedError: the sampler is closed.
        """
        weights = dict(weights_by_module(self.module, self.module if module is None else module))
        self._processes.weights.check(weights)
        self._fleet.weights.check_idle()
        with self._closing_on_errors():
            return self._fleet.weights.publish(weights)

    def get_metrics(self) -> dict[str, Any]:
        """What `MultiAgentEnvRunner.get_metrics()` reports, of the runners of all processes together, as far as
        their batches were taken; "weights_seq_no" is of the last batch. Counts and sums are added, means go over all
        that was counted, those of episodes over the last `metrics_num_episodes_for_smoothing` of all.

        Besides, since the last report: "num_batches_dropped" (too old), "num_sampler_restarts" (processes replaced) and
        "seconds_waited" (in `next()`).
        """
        report = self._metrics.report(self._version_of_batch, self.module)
        report |= {
            "num_batches_dropped": self._num_batches_dropped,
            "num_sampler_restarts": self._fleet.new["num_env_runner_restarts"],
            "seconds_waited": self._seconds_waited,
        }
        self._fleet.new["num_env_runner_restarts"] = self._num_batches_dropped = 0
        self._seconds_waited = 0.0
        return report

    @property
    def connector_states(self) -> list[dict[str, Any]]:
        """By process, what its connectors had learned at its last batch, as `runner.env_to_module.get_state()` tells
        it; a runner's `env_to_module.merge_states()` makes one of them."""
        return list(self._connector_states)

    def close(self) -> None:
        """End all processes; the first error of an env's close() is raised. Closing twice is fine.

        A process that is sampling is waited for a little, and then ended.
        """
        if not self._is_over:
            self._close("close()")

    # Batches of one process.

    def _fresh(self, runner: RemoteRunner) -> HostReport:
        """Its next batch that is not too old. If it is lost, that of another one that takes its place."""
        while True:
            report = self._taken(runner)
            self._metrics.merge(report.increment)
            if report.weights_seq_no >= self._fleet.weights.newest[1] - self._staleness:
                return report
            self._num_batches_dropped += 1

    def _taken(self, runner: RemoteRunner) -> HostReport:
        """Its next batch."""
        while (arrival := self._fleet.arrivals.take(lambda each: each.runner is runner)) is None:
            self._check_open()  # a signal's handler may have closed it
            self._fleet.feed([runner], {}, max(1, self._staleness))
            self._fleet.take_results()
        if isinstance(arrival.came, Exception):
            raise arrival.came
        self._connector_states[runner.index] = arrival.came.state.get("env_to_module_connector", {})
        return arrival.came

    # The end.

    @contextmanager
    def _closing_on_errors(self) -> Iterator[None]:
        self._check_open()
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception):
                self._check_open()  # it was closed meanwhile, and the error follows from that
            self._end()
            raise

    def _check_open(self) -> None:
        if self._is_over:
            raise RunnerStoppedError("this sampler was closed, or an error has ended it; make a new one")


def _of_episodes(make_batch: MakeBatch, episodes: list[MultiAgentEpisode], module: MultiRLModule) -> Any:
    return make_batch(episodes)


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

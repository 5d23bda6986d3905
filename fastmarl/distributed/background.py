"""Sampling in other processes while this process trains."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Self

import torch

from fastmarl.core.batches.flat import columns
from fastmarl.core.config import CHOICES, EnvRunnerConfig
from fastmarl.core.envs.registry import portable
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import ConfigError, RunnerStoppedError
from fastmarl.core.errors.checks import check_integer, check_timeout
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.objects.public import public
from fastmarl.core.processes.child import START_TIMEOUT_S
from fastmarl.core.store.request import Request
from fastmarl.distributed.fleet import Fleet
from fastmarl.distributed.host import HostReport
from fastmarl.distributed.owner import FleetOwner
from fastmarl.distributed.parcels import join_batches
from fastmarl.distributed.processes import Processes
from fastmarl.distributed.runners import RemoteRunner
from fastmarl.distributed.weights import weights_by_module
from fastmarl.runner.loop.runner_metrics import RunnerMetrics

MakeBatch = Callable[[list[MultiAgentEpisode]], Any]


@public("fastmarl.distributed")
class BackgroundSampler(FleetOwner):
    """Samples in separate processes while this process trains.

    ```python
    with BackgroundSampler(config) as sampler:
        for _ in range(100):
            batch = sampler.next()
            ...  # train sampler.module
            sampler.set_weights()
    ```

    Each process has one runner; worker indices start at `config.worker_index` + 1. For each batch, every process calls
    `sample()` once and passes the episodes to `make_batch`. Before each call it loads the latest weights.

    The version of the weights is the number of `set_weights()` calls. `next()` returns a batch only if the latest
    version is at most `max_policy_lag` ahead of the version that sampled it. With 0, sampling starts when `next()` is
    called, and the batches are bit-identical to batches from runners in this process. Otherwise up to `max_policy_lag`
    batches are sampled in advance; a batch that has become too old, because the version has increased more than once
    per batch, is dropped and replaced. Sampling starts with the first `next()`.

    An error or an interrupt in one of its methods closes the sampler.

    Args:
        config: Config of the runners; if its `num_env_runners` is not set, the number of processes is used.
        make_batch: Function episodes -> nested dict of arrays, called in the processes.
        join: Function that joins the batches of several processes, passed as a list in process order.
        processes: Number of processes, at least 1.
        max_policy_lag: See above; at least 0.
        max_restarts: How many times in a row a process that exits or times out is replaced without delivering a batch.
            Each replacement has a new `incarnation`, and thus unused seeds.
        start_method: "spawn" or "fork"; do not fork a process that has used CUDA.
        timeout_s: Seconds that `next()` waits for a process, at least 0.001. Starting has a separate limit of 300 s.

    Attributes:
        module: The modules, for training in this process.

    Raises:
        ConfigError: If an option is invalid, or an object required by the processes cannot be sent to them. Errors of
            runner constructors are raised unchanged.
    """

    def __init__(
        self,
        config: EnvRunnerConfig,
        *,
        make_batch: MakeBatch = columns,
        join: Callable[[list[Any]], Any] = join_batches,
        processes: int = 1,
        max_policy_lag: int = 1,
        max_restarts: int = 0,
        start_method: str = "spawn",
        timeout_s: float = 300.0,
    ):
        _check_options(config, processes, max_policy_lag, max_restarts, start_method, timeout_s)
        self._join = join
        self._max_policy_lag = max_policy_lag
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
        """Return the next batch: the results of one `sample()` call in each process, joined.

        The batch belongs to the caller; the sampler never writes to it again.

        Args:
            timeout_s: Seconds to wait for each process; None uses the value passed to the constructor.

        Raises:
            SamplerProcessError, SamplerTimeoutError: If a process has exited or timed out and is not replaced.
            RunnerStoppedError: If the sampler is closed.
            RunnerBusyError: If another call is running, in another thread or interrupted by a signal handler.
            ConfigError: If `timeout_s` is invalid. After this error or RunnerBusyError, the sampler keeps running.
            Exception: Any error of an env, a module, a connector, a callback or `make_batch`. Its notes contain the
                traceback and the index of the process.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        check_timeout("timeout_s", timeout_s)
        return self._fleet.run("next()", self._next, timeout_s=timeout_s)

    def _next(self, timeout_s: float) -> Any:
        begun = perf_counter()
        with self._closing_on_errors():
            self._fleet.restart_timeouts(timeout_s)
            self._fleet.feed(self._fleet.runners, Request(), max(1, self._max_policy_lag))
            reports = [self._fresh(runner) for runner in self._fleet.runners]
            self._version_of_batch = min(report.weights_seq_no for report in reports)
            batch = self._join([report.batch for report in reports])
            self._fleet.feed(self._fleet.runners, Request(), self._max_policy_lag)
        self._seconds_waited += perf_counter() - begun
        return batch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the result of `next()`; the iterator never ends."""
        return self.next()

    def set_weights(self, module: torch.nn.Module | Mapping[str, Any] | None = None) -> int:
        """Use these weights in all processes from their next call on.

        Args:
            module: All modules, the only module, or a dict of module id -> weights as returned by `get_state()`,
                possibly for some modules only; None uses `self.module`.

        Returns:
            The version of the weights, above 0, which is the "weights_seq_no" of rows sampled with them.

        Raises:
            ConfigError: If the weights belong to other modules; nothing is changed.
            RunnerBusyError: If a signal handler calls this method while it is running; the running call continues.
            RunnerStoppedError: If the sampler is closed.
        """
        weights = dict(weights_by_module(self.module, self.module if module is None else module))
        self._processes.weights.check(weights)
        self._fleet.weights.check_idle()
        with self._closing_on_errors():
            return self._fleet.weights.publish(weights)

    def get_metrics(self) -> dict[str, Any]:
        """Return the combined metrics of all processes, in the format of `MultiAgentEnvRunner.get_metrics()`.

        Only batches used or dropped by `next()` count. "weights_seq_no" belongs to the last batch. Counts and sums are
        added over processes. Means cover everything counted, except means over episodes, which cover the last
        `metrics_num_episodes_for_smoothing` episodes of all processes.

        The report also contains "num_batches_dropped" (too old), "num_sampler_restarts" (replaced processes) and
        "seconds_waited" (in `next()`), all since the last report.
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
        """Connector states of each process after its last batch, as returned by `runner.env_to_module.get_state()`.

        Merge them with `env_to_module.merge_states()` of a runner.
        """
        return list(self._connector_states)

    def close(self) -> None:
        """Stop all processes and raise the first error from closing envs. Closing twice is allowed.

        A process that is sampling gets a short time to finish before it is killed.
        """
        if not self._is_over:
            self._close("close()")

    # Batches of a single process.

    def _fresh(self, runner: RemoteRunner) -> HostReport:
        """Return the next batch of the runner, or of its replacement, that is not too old."""
        while True:
            report = self._taken(runner)
            self._metrics.merge(report.increment)
            if report.weights_seq_no >= self._fleet.weights.newest[1] - self._max_policy_lag:
                return report
            self._num_batches_dropped += 1

    def _taken(self, runner: RemoteRunner) -> HostReport:
        """Return the next batch of the runner, even if it is old."""
        while (arrival := self._fleet.arrivals.take(lambda each: each.runner is runner)) is None:
            self._check_open()  # a signal handler may have closed it
            self._fleet.feed([runner], Request(), max(1, self._max_policy_lag))
            self._fleet.take_results()
        if isinstance(arrival.came, Exception):
            raise arrival.came
        self._connector_states[runner.index] = arrival.came.state.get("env_to_module_connector", {})
        return arrival.came

    # Closing.

    @contextmanager
    def _closing_on_errors(self) -> Iterator[None]:
        self._check_open()
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception):
                self._check_open()  # it was closed meanwhile, and the error is a consequence
            self._end()
            raise

    def _check_open(self) -> None:
        if self._is_over:
            raise RunnerStoppedError("this sampler was closed, possibly by an earlier error; create a new one")


def _of_episodes(make_batch: MakeBatch, episodes: list[MultiAgentEpisode], module: MultiRLModule) -> Any:
    return make_batch(episodes)


def _check_options(
    config: Any, processes: int, max_policy_lag: int, max_restarts: int, start_method: str, timeout_s: float
) -> None:
    if not isinstance(config, EnvRunnerConfig):
        raise ConfigError(f"expected an EnvRunnerConfig, got {type(config).__name__}")
    for name, value, least in (
        ("processes", processes, 1),
        ("max_policy_lag", max_policy_lag, 0),
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
            "a BackgroundSampler starts processes, which multiprocessing forbids in a daemonic process such as this "
            "one; start it with daemon=False"
        )

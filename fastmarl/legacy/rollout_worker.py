"""The RLlib `RolloutWorker` without Ray, which samples, learns, and exchanges weights."""

import contextlib
import logging
import os
import platform
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import gymnasium as gym

from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.registry import env_creator as creator_of
from fastmarl.core.errors import BatchError, ConfigError
from fastmarl.core.objects.public import public
from fastmarl.core.objects.rllib_classes import is_of_rllib
from fastmarl.legacy.batches.sample_batch import MultiAgentBatch, concat_samples, from_rllib
from fastmarl.legacy.config import RolloutWorkerConfig, complete_config
from fastmarl.legacy.files.inputs import make_input_reader
from fastmarl.legacy.files.interfaces import InputReader, IOContext
from fastmarl.legacy.files.json_writer import make_output_writer
from fastmarl.legacy.policies.policy import Policy
from fastmarl.legacy.policies.policy_map import for_runner
from fastmarl.legacy.policies.policy_spec import Spaces
from fastmarl.legacy.policies.ppo_torch_policy import PPOTorchPolicy
from fastmarl.legacy.policies.sgd import do_minibatch_sgd
from fastmarl.legacy.policy_worker import PolicyWorker
from fastmarl.legacy.sampling.episode_view import SubEnvironments
from fastmarl.legacy.sampling.episodes_under_way import RolloutMetrics
from fastmarl.legacy.sampling.worker_callbacks import WorkerCallbacks
from fastmarl.runner.metrics.metrics_logger import MetricsLogger
from fastmarl.runner.runner import MultiAgentEnvRunner

_last: list[weakref.ref[Any]] = []


@public("fastmarl.legacy")
class RolloutWorker(PolicyWorker):
    """Samples batches from envs with policies, and trains the policies.

    It has the methods of the RLlib class of the same name; docs/old_stack.md lists the differences.

    ```python
    config = fastmarl.legacy.RolloutWorkerConfig(env="fastmarl.cart_pole", policies=["p0"])
    worker = fastmarl.legacy.RolloutWorker(config=config)
    batch = worker.sample()
    worker.learn_on_batch(batch)
    ```

    Args:
        env_creator: Function (env_config) -> env; None for `config.env`. Without either, the worker has no envs: it can
            learn, read files and exchange weights, and its policies need spaces.
        validate_env: Function (env, env_context) that raises an exception if the env is invalid.
        config: RolloutWorkerConfig, or a dict of its options.
        worker_index: Index of this worker; workers with different indices use different random streams.
        num_workers: Number of workers, 0 or more; None for `config.num_env_runners`.
        recreated_worker: True if this worker replaces a lost one with the same index; it then uses new random streams.
        log_dir: Directory for `output="logdir"`.
        spaces: Policy id -> (observation space, action space), for policies without spaces.
        default_policy_class: Function (module, config) -> Policy, for specs without a class; None for PPOTorchPolicy.
        dataset_shards: Datasets for `input_="dataset"`, one per worker index; see `DatasetReader`.
        kwargs: Ignored, as in RLlib.

    Attributes:
        config: RolloutWorkerConfig.
        spaces, dataset_shards: The arguments `spaces` and `dataset_shards`.
        env_runner: The `EnvRunnerV2` that samples.
        sampler: RLlib's name for `env_runner`; None without envs.
        env_creator: Function (env_config) -> env, or None without envs.
        env_context: EnvContext of the first env.
        input_reader: Source of batches, or None if there are neither envs nor another source.
        output_writer: Destination of batches.
        weights_seq_no: Sequence number of the weights in the last `set_weights()`, or None.
        last_batch: The batch that every `sample()` returns if `fake_sampler` is set.
    """

    multi_rl_module_spec = None  # only in the new RLlib API stack
    preprocessing_enabled = False  # modules receive observations unchanged, or from connectors

    def __init__(
        self,
        *,
        env_creator: Callable[[Any], Any] | None = None,
        validate_env: Callable[[Any, EnvContext], None] | None = None,
        config: RolloutWorkerConfig | Mapping[str, Any] | None = None,
        worker_index: int = 0,
        num_workers: int | None = None,
        recreated_worker: bool = False,
        log_dir: str | None = None,
        spaces: Spaces | None = None,
        default_policy_class: Callable[..., Policy] | None = None,
        dataset_shards: Sequence[Any] | None = None,
        **kwargs: Any,
    ):
        self._creation_args = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.config = complete_config(config or {}, env_creator, worker_index, num_workers, recreated_worker)
        _set_up_process(self, self.config, worker_index)
        self.worker_index, self.recreated_worker = worker_index, recreated_worker
        self.num_workers = self.config.num_env_runners if num_workers is None else num_workers
        if worker_index == 0 and self.num_workers and num_workers and not self.config.create_local_env_runner:
            self.config = replace(self.config, env=None)
        self.spaces, self.dataset_shards = spaces, dataset_shards
        self.last_batch: Any = None
        self._read: list[Any] = []  # batches not returned yet
        self._lock = threading.Lock()
        self._callbacks = callbacks = WorkerCallbacks(self, self.config)
        mapping_fn = self.config.policy_mapping_fn
        of_runner = None if mapping_fn is None else for_runner(mapping_fn, self)
        called = {} if self.config.env is None else callbacks.of_runner()
        self._runner = MultiAgentEnvRunner(self.config.runner_config(of_runner, called, spaces or {}))
        with contextlib.ExitStack() as undo:
            undo.callback(self._runner.stop)
            if validate_env is not None:
                self.foreach_env_with_context(validate_env)
            super().__init__(self._runner, self.config, default_policy_class or PPOTorchPolicy, callbacks)
            self.sampler = None if self.config.env is None else self.env_runner
            self.env_creator = None if self.config.env is None else creator_of(self.config.env)
            self.env_context = self._context(0)
            self._log_dir = log_dir
            self.input_reader = make_input_reader(self.io_context)
            self.output_writer = make_output_writer(self.io_context)
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # Sampling.

    def sample(self, **kwargs: Any) -> Any:
        """Return the next batch: `rollout_fragment_length` steps per env, or complete episodes with at least as many.

        Args:
            kwargs: Ignored, as in RLlib.

        Returns:
            A MultiAgentBatch (see `BatchBuilder.build()`), or a SampleBatch if `input_` returns one.

        Raises:
            ConfigError: If the worker has nothing to sample from.
        """
        config = self.config
        if config.fake_sampler and self.last_batch is not None:
            return self.last_batch
        if self.input_reader is None:
            raise ConfigError("this worker has no env to sample from; set env=..., or input_=... to read batches")
        metrics = {"env_runner": self._runner, "metrics_logger": self._runner.metrics}
        batch = None
        try:
            batch = self._next_batch(self.input_reader)
            self._callbacks.call("on_sample_end", samples=batch, **metrics)
        except BaseException:
            if batch is not None:
                self._read = [batch]  # the next call returns it
            raise
        self.output_writer.write(batch.to_rllib() if is_of_rllib(type(self.output_writer)) else batch)
        if config.compress_observations:
            batch.compress(bulk=config.compress_observations == "bulk")
        if config.fake_sampler:
            self.last_batch = batch
        return batch

    def _next_batch(self, reader: InputReader) -> Any:
        config = self.config
        wanted = self.total_rollout_fragment_length
        is_full = config.batch_mode == "truncate_episodes" and config.input_ == "sampler"
        while not self._read or (not is_full and sum(map(self._steps_of, self._read)) < wanted):
            self._read.append(from_rllib(reader.next()))
            if not self._steps_of(self._read[-1]):
                break  # no agent is in training, and this may not change
        self.policy_map.forget_idle(self.env_runner.episodes_under_way())
        try:
            batch = self._read[0] if len(self._read) == 1 else concat_samples(self._read)
        except Exception:
            self._read = []  # drop batches that do not match each other, or every later call would also fail
            raise
        self._read = []
        return batch

    def _steps_of(self, batch: Any) -> int:
        return batch.env_steps() if self.config.count_steps_by == "env_steps" else batch.agent_steps()

    def sample_get_state_and_metrics(self) -> tuple[Any, dict[str, Any], list[RolloutMetrics]]:
        """Return the results of (`sample()`, `get_state()`, `get_metrics()`)."""
        return self.sample(), self.get_state(), self.get_metrics()

    def sample_with_count(self) -> tuple[Any, int]:
        """Return (result of `sample()`, its number of env steps)."""
        batch = self.sample()
        return batch, batch.count

    def sample_and_learn(
        self,
        expected_batch_size: int,
        num_sgd_iter: int,
        sgd_minibatch_size: int,
        standardize_fields: Sequence[str],
    ) -> tuple[dict[str, Any], int]:
        """Sample a batch and learn from it in several epochs of minibatches.

        Args:
            expected_batch_size: Number of env steps in the batch, equal in all workers that average gradients.
            num_sgd_iter: Number of epochs.
            sgd_minibatch_size: Number of steps in a minibatch; 0 for the entire batch.
            standardize_fields: Columns to standardise first (mean 0, standard deviation 1).

        Returns:
            (policy id -> means over minibatches of the results of `learn_on_batch()`; number of env steps)

        Raises:
            BatchError: If the batch has a different size.
        """
        batch = self.sample()
        if batch.count != expected_batch_size:
            raise BatchError(f"expected a batch of {expected_batch_size} env steps, got {batch.count}; with "
                             f'batch_mode="complete_episodes", sizes vary')  # fmt: skip
        info = do_minibatch_sgd(
            batch, self.policy_map, self._learn, num_sgd_iter, sgd_minibatch_size, standardize_fields
        )
        return info, batch.count

    def _learn(self, policy_id: str, minibatch: Any) -> dict[str, Any] | None:
        return self.learn_on_batch(MultiAgentBatch({policy_id: minibatch}, minibatch.count)).get(policy_id)

    def get_metrics(self) -> list[RolloutMetrics]:
        """Return the metrics of the episodes finished since the last call."""
        return self.env_runner.get_metrics()

    # Envs.

    def foreach_env(self, func: Callable[[Any], Any]) -> list[Any]:
        """Call func(env) for each env and return the list of results.

        Raises:
            ConfigError: If the envs run in worker processes.
        """
        return [func(env) for env in self._envs()]

    def foreach_env_with_context(self, func: Callable[[Any, EnvContext], Any]) -> list[Any]:
        """Call func(env, context) for each env and return the list of results; see `foreach_env()`."""
        return [func(env, self._context(i)) for i, env in enumerate(self._envs())]

    def _context(self, vector_index: int) -> EnvContext:
        return EnvContext(
            self.config.env_config,
            self.worker_index,
            vector_index,
            self.config.gym_env_vectorize_mode == "async",
            self.num_workers,
            self.recreated_worker,
            num_envs=self._runner.num_envs,
        )

    def _envs(self) -> list[Any]:
        if self.config.env is None:
            return []
        if self.config.gym_env_vectorize_mode != "sync":
            raise ConfigError('the envs run in worker processes; to call them, set gym_env_vectorize_mode="sync"')
        return list(self._runner.env.envs)

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        """Return policy id -> (observation space, action space), and the spaces of an env under "__env__"."""
        hidden = {"__env_single__", *({"__env__"} if self.config.env is None else ())}
        return {id_: each for id_, each in self._runner.get_spaces().items() if id_ not in hidden}

    def make_env(self) -> None:
        """Close the envs and create them again; running episodes are dropped.

        Raises:
            ConfigError: If the worker has no envs.
        """
        if self.config.env is None:
            raise ConfigError("this worker has no env, and its config can't change; create a worker with env=...")
        self._runner.make_env()

    def make_module(self) -> None:
        """Do nothing, like the RLlib method, because modules are built from `policies`."""

    @property
    def io_context(self) -> IOContext:
        """An IOContext equal to the one used to create the input reader and output writer."""
        return IOContext(self._log_dir, self.config, self.worker_index, self)

    @property
    def env(self) -> Any:
        """The first env, or None without envs."""
        return None if self.config.env is None else self._runner.env.envs[0]

    @property
    def async_env(self) -> SubEnvironments | None:
        """The vector of envs, with `get_sub_environments()`, or None without envs."""
        return None if self.config.env is None else SubEnvironments(self._runner.env)

    def make_sub_env_fn(self, vector_index: int) -> Any:
        """Create another env, which the caller must close.

        Args:
            vector_index: `vector_index` of its EnvContext.

        Raises:
            ConfigError: If the worker has no envs.
        """
        if self.env_creator is None:
            raise ConfigError("this worker has no env; set env=...")
        return self.env_creator(self._context(vector_index))

    @property
    def preprocessors(self) -> dict[str, None]:
        """Policy id -> None, because there are connectors instead of preprocessors."""
        return dict.fromkeys(self.policy_map)

    @property
    def seed(self) -> int | None:
        """Sum of `config.seed`, the worker index, and 10,000 in evaluation, as in RLlib; None without a seed.

        Random streams depend on the seed and the worker index separately, not on this sum.
        """
        config = self.config
        return None if config.seed is None else config.seed + self.worker_index + 10_000 * config.in_evaluation

    @property
    def total_rollout_fragment_length(self) -> int:
        """Number of steps in a batch, summed over all envs."""
        return self.config.get_rollout_fragment_length() * self.config.num_envs_per_env_runner

    @property
    def metrics(self) -> MetricsLogger:
        """Logger for values from callbacks, which `get_metrics()` reports in `custom_metrics`."""
        return self._runner.metrics

    @property
    def num_env_steps_sampled_lifetime(self) -> int:
        """Env steps sampled by all calls, including steps not yet in a batch."""
        return self._runner.num_env_steps_sampled_lifetime

    # The worker itself.

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call func(worker, ...) and return its result."""
        return func(self, *args, **kwargs)

    def lock(self) -> None:
        """Acquire the worker lock, waiting if necessary. No other method acquires it."""
        self._lock.acquire()

    def unlock(self) -> None:
        """Release the worker lock."""
        self._lock.release()

    def creation_args(self) -> dict[str, Any]:
        """Return the constructor arguments of the worker."""
        return self._creation_args

    def ping(self) -> str:
        """Return "pong", to check that the worker responds."""
        return "pong"

    def get_host(self) -> str:
        """Return the host name of this machine."""
        return platform.node()

    def get_node_ip(self) -> str:
        """Return the IP address of this machine, or 127.0.0.1 without a network."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # sends nothing; the address is for documentation (RFC 5737)
            except OSError:
                return "127.0.0.1"
            return probe.getsockname()[0]

    def find_free_port(self) -> int:
        """Return a currently free port."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            return probe.getsockname()[1]

    def assert_healthy(self) -> None:
        """Raise RunnerStoppedError after `stop()` or a failed `make_env()`."""
        self._runner.assert_healthy()

    def stop(self) -> None:
        """Close the envs and the output writer, and leave the process group if the worker has joined one."""
        self._runner.stop()
        if hasattr(self.output_writer, "close"):  # RLlib writers have no close()
            self.output_writer.close()
        self._leave_process_group()


def get_global_worker() -> Any:
    """Return the last `RolloutWorker` created in this process, or None if there is none or it has been freed."""
    return _last[0]() if _last else None


def _set_up_process(worker: Any, config: RolloutWorkerConfig, worker_index: int) -> None:
    """Make `worker` the global worker, and set environment variables and the log level from its config."""
    _last[:] = [weakref.ref(worker)]
    given = config.extra_python_environs_for_worker if worker_index else config.extra_python_environs_for_driver
    os.environ.update({name: str(value) for name, value in given.items()})
    if config.log_level is not None:
        logging.getLogger("fastmarl").setLevel(config.log_level)

"""Options of a `RolloutWorker` for its runner, batches, inputs and outputs."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import Any, TypeVar

from fastmarl.core.callbacks import EVENTS
from fastmarl.core.config import DEFAULTS, OF_OUTPUT, EnvRunnerConfig
from fastmarl.core.envs.base import MultiAgentEnv
from fastmarl.core.errors import ConfigError, corrects_options, misfit
from fastmarl.core.errors.checks import is_integer_from, is_number
from fastmarl.core.objects.public import public
from fastmarl.legacy.batches.packing import check_can_pack
from fastmarl.legacy.observation_filter import ObservationFilter
from fastmarl.legacy.policies.policy_spec import PolicySpec, Spaces, as_policy_spec

NO_FILTER, CONCURRENT_FILTER = "NoFilter", "ConcurrentMeanStdFilter"
FILTERS = (NO_FILTER, "MeanStdFilter", CONCURRENT_FILTER)
OF_TORCH = "policies are torch modules"
PREPROCESSORS = "modules receive observations unchanged; FlattenObservations() in env_to_module_connector flattens them"
ON_GPU = 'set device="cuda" or num_gpus_per_env_runner'
ATARI = "pass a function that wraps the environment as `env`"
IN_MEMORY = "all policies stay in memory"
WITHOUT_COUNTERPART = {
    "_disable_action_flattening": "batches contain actions in the format of the module's distribution",
    "_disable_preprocessor_api": PREPROCESSORS,
    "_fake_gpus": ON_GPU,
    "_is_atari": ATARI,
    "custom_vector_env": "pass a batch of environments as `env`, see docs/array_envs.md",
    "enable_tf1_exec_eagerly": OF_TORCH,
    "framework": OF_TORCH,
    "framework_str": OF_TORCH,
    "is_atari": ATARI,
    "model": "use model_config for default networks, and the option max_seq_len",
    "num_gpus": ON_GPU,
    "observation_fn": "RLlib's worker ignores it; change observations in a connector, see docs/connectors.md",
    "offline_sampling": "a worker that reads files always collects total_rollout_fragment_length steps",
    "policy_map_capacity": IN_MEMORY,
    "policy_states_are_swappable": IN_MEMORY,
    "preprocessor_pref": PREPROCESSORS,
    "remote_env_batch_wait_ms": 'set gym_env_vectorize_mode="async" and env_batch_size',
    "remote_worker_envs": 'set gym_env_vectorize_mode="async"',
    "render_env": "call env.render() in callbacks_on_episode_step",
    "sample_collector": "override postprocess_trajectory() of the policy",
    "stats_cls_lookup": "pass `reduce` to metrics_logger.log_value(), see docs/metrics.md",
}
"""RLlib option -> alternative."""
Config = TypeVar("Config")


def _refuses_options_of_rllib(config_class: type[Config]) -> type[Config]:
    """Make a config class reject the options in `WITHOUT_COUNTERPART` with a ConfigError that lists alternatives."""
    make = config_class.__init__

    @wraps(make)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        if refused := [name for name in options if name in WITHOUT_COUNTERPART]:
            ways = "; ".join(f"{name} ({WITHOUT_COUNTERPART[name]})" for name in refused)
            raise ConfigError(f"{type(self).__name__} does not support these RLlib options; leave them out: {ways}")
        make(self, *args, **options)

    config_class.__init__ = checked  # type: ignore[method-assign]
    return config_class


@public("fastmarl.legacy")
@_refuses_options_of_rllib
@corrects_options
@dataclass(frozen=True, kw_only=True)
class RolloutWorkerConfig(EnvRunnerConfig):
    """Options of a `RolloutWorker`, in addition to the options of `EnvRunnerConfig`.

    `policies` may contain `PolicySpec` objects, or tuples (policy_class, observation_space, action_space, config). A
    worker without an `env` can learn and read files; its policies must then specify their spaces.

    Raises:
        TypeError: If an option is misspelt.
        ConfigError: If an option has an invalid value, or is an RLlib option without a counterpart here.
    """

    env: Any = None
    """Environment: a name, a class, or a function `(env_config) -> env`; None for a worker without envs."""
    policy_config: Mapping[str, Any] = field(default_factory=dict)
    """Options of all policies, such as {"lr": 1e-3, "gamma": 0.95}; defaults depend on the policy class."""
    train_batch_size: int | None = None
    """Number of steps in a train batch. With rollout_fragment_length="auto", it is divided among the envs of all
    workers, replacing `train_batch_size_per_learner`; a file reader returns a worker's share as a single batch. None
    for one line at a time."""
    max_seq_len: int = 20
    """Maximum number of steps in a sequence; trajectories of recurrent policies are split into sequences."""
    observation_filter: str = NO_FILTER
    """"NoFilter", or "MeanStdFilter" to normalise observations with running statistics per policy, exactly as in RLlib;
    "ConcurrentMeanStdFilter" is equivalent."""
    compress_observations: bool | str = False
    """Pack (compress) the observations in batches: True packs each row, "bulk" each column."""
    fake_sampler: bool = False
    """Sample once and return the same batch from every call, to measure the speed of learning alone."""
    create_local_env_runner: bool = True
    """Create envs in the worker with index 0 even if there are other workers."""
    extra_python_environs_for_driver: Mapping[str, Any] = field(default_factory=dict)
    """Environment variables to set in the process of the worker with index 0."""
    extra_python_environs_for_worker: Mapping[str, Any] = field(default_factory=dict)
    """Environment variables to set in the processes of all other workers."""
    log_level: str | int | None = None
    """Level of the "fastmarl" logger, such as "DEBUG", set when the worker is created; None leaves it unchanged."""
    sampler_perf_stats_ema_coef: float | None = None
    """Weight of the latest step if `perf_stats` are exponential moving averages; None for means over all steps."""
    checkpoint_trainable_policies_only: bool = False
    """Omit policies that are not trained from `get_state()`."""
    input_: Any = "sampler"
    """Source of batches: "sampler"; a JSON file, a directory, a glob or a list of files; a function `(io_context) ->
    InputReader`, or a name registered with `register_input()`; a class path such as "package.module.Reader"; "dataset"
    for the worker's entry in `dataset_shards`; or a dict of any of these -> probability."""
    input_config: Mapping[str, Any] = field(default_factory=dict)
    """Options for custom input readers, available as `io_context.input_config`."""
    shuffle_buffer_size: int = 0
    """Number of batches in the shuffle buffer of file readers; 0 disables shuffling."""
    postprocess_inputs: bool = False
    """Apply `postprocess_trajectory()` of the policy to each episode read from files."""
    output: Any = None
    """Destination for sampled batches: a directory, "logdir", or a function `(io_context) -> OutputWriter`."""
    output_compress_columns: Collection[str] | None = None
    """Columns to pack in files, which requires lz4; None means "obs" and "new_obs" if lz4 is installed."""
    output_max_file_size: int = 64 * 1024 * 1024
    """Size in bytes after which the writer starts a new file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = f"one of {list(FILTERS)}"
        self._check("observation_filter", self.observation_filter in FILTERS, allowed)
        self._check("compress_observations", self.compress_observations in (False, True, "bulk"), 'a bool or "bulk"')
        for policy_id in self.module_specs:
            self.policy_spec(policy_id)
        self._check_numbers()
        for name in ("extra_python_environs_for_driver", "extra_python_environs_for_worker"):
            given = getattr(self, name)
            is_plain = isinstance(given, Mapping) and all(isinstance(each, str) for each in given)
            self._check(name, is_plain, "a dict of environment variable name -> value")
        level, names = self.log_level, logging.getLevelNamesMapping()
        is_level = level in names if isinstance(level, str) else level is None or is_integer_from(0, level)
        self._check("log_level", is_level, f"None, a non-negative integer or one of {list(names)}")
        if self.compress_observations:
            check_can_pack(f"compress_observations={self.compress_observations!r}")
        if self.observation_filter != NO_FILTER and self.env_to_module_connector is not None:
            raise ConfigError(f"observation_filter={self.observation_filter!r} can't be combined with "
                              f"env_to_module_connector; add a MeanStdFilter to the connectors instead")  # fmt: skip

    def _check_numbers(self) -> None:
        for name in ("max_seq_len", "output_max_file_size"):
            self._check(name, is_integer_from(1, getattr(self, name)), "a positive integer")
        size, weight = self.train_batch_size, self.sampler_perf_stats_ema_coef
        is_weight = weight is None or (is_number(weight) and 0 <= weight <= 1)
        self._check("train_batch_size", size is None or is_integer_from(1, size), "None or a positive integer")
        self._check("sampler_perf_stats_ema_coef", is_weight, "None or a number in [0, 1]")
        self._check("shuffle_buffer_size", is_integer_from(0, self.shuffle_buffer_size), "a non-negative integer")

    @property
    def total_train_batch_size(self) -> int:
        """`train_batch_size` or, if it is None, `train_batch_size_per_learner` summed over all learners."""
        return super().total_train_batch_size if self.train_batch_size is None else self.train_batch_size

    def policy_spec(self, policy_id: str) -> PolicySpec:
        """Return the entry of `policy_id` in `policies` as a PolicySpec."""
        return as_policy_spec(policy_id, self.module_specs[policy_id])

    def _check_mapping_fn(self) -> None:
        """Also accept mapping functions of the old RLlib API stack, which take the worker as an argument."""
        given = self.policy_mapping_fn
        if given is None and self.env is None:
            return
        if not callable(given) or misfit(given, "agent_id", None, worker=None):
            super()._check_mapping_fn()

    def _check_output(self) -> None:
        """Reject the output options of the runner, since a worker writes batches and has separate options for them."""
        for name in OF_OUTPUT:
            if (value := getattr(self, name)) != DEFAULTS[name]:
                raise ConfigError(f"{name}={value!r} is for Parquet files; a RolloutWorker writes JSON: use "
                                  f"output_max_file_size and output_compress_columns")  # fmt: skip

    def runner_config(
        self, mapping_fn: Callable[..., str] | None, callbacks: Mapping[str, Callable[..., None]], spaces: Spaces
    ) -> EnvRunnerConfig:
        """Return the config for the runner of the worker.

        Args:
            mapping_fn: `policy_mapping_fn` of the runner.
            callbacks: Event name -> callback function.
            spaces: Policy id -> (observation space, action space), for policies without spaces.

        Raises:
            ConfigError: If there is no env and the spaces of a policy are unknown.
        """
        of_runner = {option.name: getattr(self, option.name) for option in fields(EnvRunnerConfig)}
        of_runner |= {f"callbacks_{event}": callbacks.get(event) for event in EVENTS}
        of_runner |= {"policy_mapping_fn": mapping_fn, "callbacks_class": None, "output": None}  # handled by the worker
        specs = {id_: self.policy_spec(id_).with_spaces(spaces.get(id_)) for id_ in self.module_specs}
        if self.policies is not None or self.env is None:
            of_runner["policies"] = {policy_id: spec.module_spec() for policy_id, spec in specs.items()}
        if self.env is None:
            of_runner |= NoEnv.options({policy_id: spec.spaces(policy_id) for policy_id, spec in specs.items()})
        if self.observation_filter != NO_FILTER:
            is_concurrent = self.observation_filter == CONCURRENT_FILTER
            of_runner["env_to_module_connector"] = ObservationFilter(is_concurrent)
        return EnvRunnerConfig(**of_runner)


class NoEnv(MultiAgentEnv):
    """Placeholder env of a worker without envs, which supplies the spaces for building modules.

    Args:
        spaces: Policy id -> (observation space, action space).
    """

    def __init__(self, spaces: Spaces):
        super().__init__()
        self.agents = self.possible_agents = list(spaces)
        self.observation_spaces = {policy_id: each[0] for policy_id, each in spaces.items()}
        self.action_spaces = {policy_id: each[1] for policy_id, each in spaces.items()}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        raise ConfigError("this worker has no env to sample from; set env=..., or input_=... to read batches")

    @classmethod
    def options(cls, spaces: Spaces) -> dict[str, Any]:
        """Return the options for a runner with this env."""
        return {
            "env": lambda context: cls(spaces),
            "policy_mapping_fn": lambda agent_id, episode: agent_id,
            "num_envs_per_env_runner": 1,
            "gym_env_vectorize_mode": "sync",
        }


def complete_config(
    config: RolloutWorkerConfig | Mapping[str, Any],
    env_creator: Callable[[Any], Any] | None,
    worker_index: int,
    num_workers: int | None,
    recreated_worker: bool,
) -> RolloutWorkerConfig:
    """Return the config, updated with the other worker arguments."""
    if not isinstance(config, RolloutWorkerConfig | Mapping):
        raise ConfigError(f"config must be a RolloutWorkerConfig or a dict of its options, got a "
                          f"{type(config).__name__}")  # fmt: skip
    changes: dict[str, Any] = {"worker_index": worker_index}
    if env_creator is not None:
        changes["env"] = env_creator
    if num_workers is not None:
        changes["num_env_runners"] = max(1, num_workers)
    if not isinstance(config, RolloutWorkerConfig):
        config = RolloutWorkerConfig(**{**config, **changes})
    if recreated_worker:
        changes["incarnation"] = config.incarnation + 1
    return replace(config, **changes)

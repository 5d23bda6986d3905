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
OF_TORCH = "policies are modules of torch"
PREPROCESSORS = "modules take observations as they are; FlattenObservations() in env_to_module_connector flattens them"
ON_GPU = 'set device="cuda" or num_gpus_per_env_runner'
ATARI = "wrap the environment in the function that `env` is"
IN_MEMORY = "all policies stay in memory"
WITHOUT_COUNTERPART = {
    "_disable_action_flattening": "batches have actions as the module's distribution has them",
    "_disable_preprocessor_api": PREPROCESSORS,
    "_fake_gpus": ON_GPU,
    "_is_atari": ATARI,
    "custom_vector_env": "`env` may be a batch of environments, see docs/array_envs.md",
    "enable_tf1_exec_eagerly": OF_TORCH,
    "framework": OF_TORCH,
    "framework_str": OF_TORCH,
    "is_atari": ATARI,
    "model": "model_config has the options of default networks, and max_seq_len is an option of its own",
    "num_gpus": ON_GPU,
    "observation_fn": "RLlib's worker ignores it; change observations in a connector, see docs/connectors.md",
    "offline_sampling": "a worker that reads files always collects total_rollout_fragment_length steps",
    "policy_map_capacity": IN_MEMORY,
    "policy_states_are_swappable": IN_MEMORY,
    "preprocessor_pref": PREPROCESSORS,
    "remote_env_batch_wait_ms": 'set gym_env_vectorize_mode="async" and env_batch_size',
    "remote_worker_envs": 'set gym_env_vectorize_mode="async"',
    "render_env": "call env.render() in callbacks_on_episode_step",
    "sample_collector": "a policy's postprocess_trajectory() gets each trajectory",
    "stats_cls_lookup": "metrics_logger.log_value() takes `reduce`, see docs/metrics.md",
}
"""RLlib option -> alternative."""
Config = TypeVar("Config")


def _refuses_options_of_rllib(config_class: type[Config]) -> type[Config]:
    """Make a config class raise a ConfigError that lists alternatives if given options `WITHOUT_COUNTERPART`."""
    make = config_class.__init__

    @wraps(make)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        if refused := [name for name in options if name in WITHOUT_COUNTERPART]:
            ways = "; ".join(f"{name} ({WITHOUT_COUNTERPART[name]})" for name in refused)
            raise ConfigError(f"{type(self).__name__} has no counterpart of these options; leave them out: {ways}")
        make(self, *args, **options)

    config_class.__init__ = checked  # type: ignore[method-assign]
    return config_class


@public("fastmarl.legacy")
@_refuses_options_of_rllib
@corrects_options
@dataclass(frozen=True, kw_only=True)
class RolloutWorkerConfig(EnvRunnerConfig):
    """Options of a `RolloutWorker`, in addition to the options of `EnvRunnerConfig`.

    `policies` may contain `PolicySpec`s, or tuples (policy_class, observation_space, action_space, config). A worker
    without an `env` learns and reads files; its policies then need spaces.

    Raises:
        TypeError: If an option is misspelt.
        ConfigError: If an option has an invalid value, or is an RLlib option without a counterpart here.
    """

    env: Any = None
    """Environment: a name, a class, or a function `(env_config) -> env`; None: the worker has no envs."""
    policy_config: Mapping[str, Any] = field(default_factory=dict)
    """Options of all policies, such as {"lr": 1e-3, "gamma": 0.95}; defaults depend on the policy class."""
    train_batch_size: int | None = None
    """Steps of a train batch. With rollout_fragment_length="auto" it is divided among the envs of all workers, in place
    of `train_batch_size_per_learner`; a file reader returns the share of a worker in a single batch. None: one line at
    a time."""
    max_seq_len: int = 20
    """Maximum number of steps of a sequence; trajectories of recurrent policies are cut into sequences."""
    observation_filter: str = NO_FILTER
    """"NoFilter", or "MeanStdFilter" to normalise observations by statistics per policy, with the operations of RLlib;
    "ConcurrentMeanStdFilter" does the same."""
    compress_observations: bool | str = False
    """Pack the observations in batches: True row by row, "bulk" column by column."""
    fake_sampler: bool = False
    """Sample once and return that batch from every call, to measure only the speed of learning."""
    create_local_env_runner: bool = True
    """Give the worker of index 0 envs even if there are other workers."""
    extra_python_environs_for_driver: Mapping[str, Any] = field(default_factory=dict)
    """Environment variables set by the worker of index 0 in its process."""
    extra_python_environs_for_worker: Mapping[str, Any] = field(default_factory=dict)
    """Environment variables set by all other workers in their processes."""
    log_level: str | int | None = None
    """Level of the logger "fastmarl", such as "DEBUG", set when the worker is made; None: unchanged."""
    sampler_perf_stats_ema_coef: float | None = None
    """Weight of a step in `perf_stats` as exponential moving averages; None: means over all steps."""
    checkpoint_trainable_policies_only: bool = False
    """Leave policies that are not trained out of `get_state()`."""
    input_: Any = "sampler"
    """Source of batches: "sampler"; a JSON file, a directory, a glob or a list of files; a function `(io_context) ->
    InputReader`, or its name in `register_input()`; the path of a class, "package.module.Reader"; "dataset", the entry
    of the worker in `dataset_shards`; or a dict {any of these: its fraction}."""
    input_config: Mapping[str, Any] = field(default_factory=dict)
    """Options for custom input readers, available as `io_context.input_config`."""
    shuffle_buffer_size: int = 0
    """Number of batches in the shuffle buffer for batches from files; 0: do not shuffle."""
    postprocess_inputs: bool = False
    """Call `postprocess_trajectory()` of the policy with each episode read from files."""
    output: Any = None
    """Destination of the batches of `sample()`: a directory, "logdir", or a function `(io_context) -> OutputWriter`."""
    output_compress_columns: Collection[str] | None = None
    """Columns to pack in files, which requires lz4; None: "obs" and "new_obs" if lz4 is installed."""
    output_max_file_size: int = 64 * 1024 * 1024
    """Size in bytes after which the writer begins a new file."""

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
            self._check(name, is_plain, "a dict from names of environment variables to values")
        level, names = self.log_level, logging.getLevelNamesMapping()
        is_level = level in names if isinstance(level, str) else level is None or is_integer_from(0, level)
        self._check("log_level", is_level, f"None, an integer or one of {list(names)}")
        if self.compress_observations:
            check_can_pack(f"compress_observations={self.compress_observations!r}")
        if self.observation_filter != NO_FILTER and self.env_to_module_connector is not None:
            raise ConfigError(f"observation_filter={self.observation_filter!r} and env_to_module_connector are two "
                              f"ways to say the same; put a MeanStdFilter among the connectors instead")  # fmt: skip

    def _check_numbers(self) -> None:
        for name in ("max_seq_len", "output_max_file_size"):
            self._check(name, is_integer_from(1, getattr(self, name)), "an integer of at least 1")
        size, weight = self.train_batch_size, self.sampler_perf_stats_ema_coef
        is_weight = weight is None or (is_number(weight) and 0 <= weight <= 1)
        self._check("train_batch_size", size is None or is_integer_from(1, size), "None or an integer of at least 1")
        self._check("sampler_perf_stats_ema_coef", is_weight, "None or a number from 0 to 1")
        self._check("shuffle_buffer_size", is_integer_from(0, self.shuffle_buffer_size), "an integer of at least 0")

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
                raise ConfigError(f"{name}={value!r} is for Parquet files; a RolloutWorker writes JSON, see "
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
        of_runner |= {"policy_mapping_fn": mapping_fn, "callbacks_class": None, "output": None}  # of the worker
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
    """Placeholder for a worker without an env: it has the policy spaces, so that modules can be made.

    Args:
        spaces: Policy id -> (observation space, action space).
    """

    def __init__(self, spaces: Spaces):
        super().__init__()
        self.agents = self.possible_agents = list(spaces)
        self.observation_spaces = {policy_id: each[0] for policy_id, each in spaces.items()}
        self.action_spaces = {policy_id: each[1] for policy_id, each in spaces.items()}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        raise ConfigError("this worker has no env to sample; set env=..., or input_=... to read batches")

    @classmethod
    def options(cls, spaces: Spaces) -> dict[str, Any]:
        """Return the options of a runner with this env."""
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
    """Return the config with the values of the other worker arguments."""
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

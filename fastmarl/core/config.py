"""Options of a runner, named as in RLlib and checked once, when the config is created."""

import os
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from fastmarl.core.errors import ConfigError, corrects_options, misfit
from fastmarl.core.errors.checks import check_bool, check_timeout, in_order, is_clip, is_integer_from, is_number
from fastmarl.core.objects.public import public

DEFAULT_MODULE_ID = "default_policy"
CHOICES = {
    "batch_mode": ("truncate_episodes", "complete_episodes"),
    "count_steps_by": ("env_steps", "agent_steps"),
    "late_rewards": ("error", "accumulate", "drop"),
    "gym_env_vectorize_mode": ("sync", "async"),
    "env_worker_start_method": ("spawn", "fork"),
    "failed_episodes": ("truncate", "discard"),
    "inference_dtype": ("float32", "bfloat16"),
    "torch_compile_worker_dynamo_mode": (None, "default", "reduce-overhead", "max-autotune",
                                         "max-autotune-no-cudagraphs"),
}  # fmt: skip
AT_LEAST = {
    "num_envs_per_env_runner": 1,
    "rollout_fragment_length": 1,
    "train_batch_size_per_learner": 1,
    "num_learners": 0,
    "episode_lookback_horizon": 0,
    "metrics_num_episodes_for_smoothing": 1,
    "worker_index": 0,
    "num_env_runners": 1,
    "incarnation": 0,
    "num_env_workers": 0,
    "max_restarts": 0,
    "worker_num_splits": 1,
    "output_max_rows_per_file": 1,
}
OF_WORKERS = ("num_env_workers", "step_timeout_s", "env_worker_start_method")
OF_RESTARTS = ("failed_episodes", "max_restarts")
OF_OUTPUT = ("output_max_rows_per_file", "output_config")
IN_OUTPUT_CONFIG = ("compression", "columns", "next_obs", "max_queue_size", "timeout_s")
AUTO = "auto"
OF_EVALUATION = 1_000_000  # added to worker_index, beyond all training runners; RLlib adds it to the seed
OF_AUTO = ("train_batch_size_per_learner", "num_learners")
RENAMED = {  # option of 0.1.0 -> current name, for files that store options
    "keep_dtype": "keep_float64",
    "lean_inference": "native_inference",
    "post_death": "late_rewards",
}
OF_COMPILING = ("torch_compile_worker_dynamo_backend", "torch_compile_worker_dynamo_mode")


@public("fastmarl")
@corrects_options
@dataclass(frozen=True, kw_only=True)
class EnvRunnerConfig:
    """Options of a `MultiAgentEnvRunner`.

    Raises a TypeError for an unknown option, and a ConfigError that names the allowed values for an invalid value.
    """

    env: Any
    """A class, a callable `(env_config) -> env`, or a name: one registered with `register_env` or Tune, or a path such
    as `"mpe2.simple_spread_v3"` or `"my_module:MyEnv"`."""
    env_config: Mapping[str, Any] = field(default_factory=dict)
    """Passed to `env` as a dict with the attributes `worker_index`, `vector_index`, `num_workers` (`num_env_runners`),
    `remote` (True in a worker process) and `recreated_worker` (True if `incarnation` > 0), and with the RLlib methods
    `copy_with_overrides()` and `set_defaults()`. Gymnasium and PettingZoo classes receive it as keyword arguments."""
    num_envs_per_env_runner: int = 1
    """Number of envs per runner."""
    gym_env_vectorize_mode: str = "sync"
    """"sync": envs are stepped sequentially in this process. "async": they are stepped in parallel in worker processes,
    with identical results; see docs/scaling.md."""
    num_env_workers: int = 0
    """Number of worker processes in "async" mode, each with adjacent envs. 0 means one per core, but at most
    one per env."""
    worker_num_splits: int = 1
    """Number of splits of the envs, which alternate: while one is stepped, actions are computed for the next (2 means
    double buffering). Batched envs are stepped in a separate thread; single envs in "sync" mode are stepped
    sequentially, with equal results. See docs/scaling.md."""
    env_batch_size: int | None = None
    """In "async" mode, continue as soon as this many envs are ready; useful for envs of unequal speed. Which envs these
    are is not reproducible. None waits for all envs (of a split)."""
    env_worker_start_method: str = "spawn"
    """How workers are started: "spawn" (a fresh Python process that imports the env creator) or "fork" (faster, with a
    copy of this process; not after CUDA was used, or with threads that hold locks)."""
    step_timeout_s: float = 300.0
    """Timeout in seconds for a worker to step or reset its envs once. A worker that exceeds it is terminated, and the
    call fails."""
    restart_failed_sub_environments: bool = False
    """If True, rebuild an env that raises an error, or whose worker dies or times out; otherwise `sample()` raises an
    error. See docs/scaling.md."""
    failed_episodes: str = "truncate"
    """How to handle the episode of a failed env: "truncate" it at the last completed step, or "discard" it."""
    max_restarts: int = 3
    """Number of consecutive restarts of an env without a successful step before its error is raised."""
    disable_env_checking: bool = False
    """Skip the detailed checks of the first reset() and step() of each env."""

    policies: Any = None
    """Module ids (a collection), or module id -> RLModuleSpec, torch.nn.Module or None (the default network).
    None means one module, "default_policy"."""
    policy_mapping_fn: Callable[..., str] | None = None
    """`(agent_id, episode) -> module id`, called once per agent and episode. None maps all agents to the single
    module."""
    policies_to_train: Collection[str] | Callable[..., bool] | None = None
    """Module ids, or `(module_id, batch or None) -> bool`, that select the modules to train. None selects all."""
    return_only_policies_to_train: bool = False
    """If True, `sample()` omits agents whose modules are not trained. Metrics still include them."""
    rl_module_spec: Any = None
    """RLModuleSpec of modules without one in `policies`, or a MultiRLModuleSpec with specs for some of them."""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    """Options of the default networks, such as {"fcnet_hiddens": [64, 64]}, and of modules whose RLModuleSpec has none.
    Options that no module uses raise an error."""
    env_to_module_connector: Any = None
    """Converts observations to module inputs, see docs/connectors.md: a `fastmarl.connectors.EnvToModuleConnector`, a
    list of them, a function `(env, spaces, device)` that returns these for a module, or a dict of module id -> any of
    these."""
    module_to_env_connector: Any = None
    """Transforms module outputs and actions: one or several `fastmarl.connectors.ModuleToEnvConnector`, in the same
    forms as `env_to_module_connector`; a function is called as `(env, spaces)`. They modify the recorded actions,
    unless `GetActions` and `NormalizeAndClipActions` in the list mark where actions are computed."""
    reward_scale: float = 1.0
    """Factor applied to rewards before they are recorded; metrics report returns computed from the original rewards."""
    clip_rewards: bool | float | tuple[float, float] | None = None
    """Applied after `reward_scale`. True records only the sign, a number c clips to [-c, c], and a pair clips to these
    bounds."""
    device: str = "cpu"
    """Device of the modules: "cpu", "cuda" (or "cuda:1"), or "auto" (a GPU if available)."""
    num_gpus_per_env_runner: float = 0
    """A number above 0 runs modules on a GPU, even if `device` is "cpu". With a fraction f, 1 / f runners share each
    GPU but not its memory: with several visible GPUs, runner `worker_index` uses index (worker_index - 1) * f, rounded
    down."""
    cuda_graphs: bool = True
    """On a GPU, launch the forward passes of all supported modules as a single CUDA graph, see docs/inference.md."""
    inference_dtype: str = "float32"
    """"bfloat16": run forward passes for acting under torch.autocast. Dtypes of weights and data do not change."""
    torch_compile_worker: bool = False
    """Compile the forward methods of modules not run by native inference with `torch.compile`."""
    torch_compile_worker_dynamo_backend: str = "inductor"
    """`backend` of `torch.compile`."""
    torch_compile_worker_dynamo_mode: str | None = None
    """`mode` of `torch.compile`."""
    native_inference: bool = True
    """On the CPU, run the forward passes of default networks in compiled code instead of torch if results are equal up
    to rounding, see docs/inference.md. If False, torch runs all modules."""
    num_threads: int | None = None
    """Number of threads for compiled forward passes over many rows; results do not depend on it. None means the cores
    available to this process, at most 8; in a worker process of a group, its share of them."""
    explore: bool = True
    """Default for the `explore` argument of sample(): True samples actions, False chooses the most likely ones."""
    normalize_actions: bool = True
    """Modules act in [-1, 1], and bounded Box actions are scaled to the bounds of the space for the env."""
    clip_actions: bool = False
    """Without `normalize_actions`, clip Box actions to the bounds of the space for the env."""

    rollout_fragment_length: int | str = 200
    """Env steps (or agent steps) per env in a sample() call without `num_timesteps` or `num_episodes`. "auto" means the
    share of `train_batch_size_per_learner` per env, see `get_rollout_fragment_length()`."""
    train_batch_size_per_learner: int = 4000
    """With rollout_fragment_length="auto", total steps per learner in one sample() call of all `num_env_runners`."""
    num_learners: int = 0
    """With rollout_fragment_length="auto", number of learners that consume the batches; 0 counts as one."""
    batch_mode: str = "truncate_episodes"
    """With "complete_episodes", a sample() call without `num_timesteps` or `num_episodes` returns one complete episode
    per env instead."""
    count_steps_by: str = "env_steps"
    """Unit of `rollout_fragment_length` and `num_timesteps`: "env_steps" or "agent_steps"."""
    keep_float64: bool = False
    """Record float64 observations unchanged; otherwise as float32, which modules receive in any case."""
    episodes_to_numpy: bool = True
    """Always True: columns of episodes are arrays from the start. With False, RLlib returns lists."""
    episode_lookback_horizon: int = 1
    """Env steps of history that a chunk of an episode carries over from the previous one."""
    record_env_state: bool = False
    """Record the global state of the env, `env.state()`, at every env step: see
    `MultiAgentEpisode.get_env_states()`."""
    late_rewards: str = "error"
    """How to handle a reward for a finished agent: "error", "accumulate" (add it to the last transition, unless that
    was already returned) or "drop". Rewards that reach no transition are counted in the metric
    `unattributed_reward`."""
    respawn: bool = False
    """If True, a finished agent that is observed again starts a new trajectory; otherwise this is an error."""
    record_actions: str | os.PathLike | None = None
    """Directory for a record of all actions, from which `fastmarl.replay()` reproduces any episode; see docs/replay.md.
    Every reset is then seeded, even without a `seed`. Several runners may share the directory."""

    output: Any = None
    """Directory to which everything that `sample()` returns is also written, as Parquet files; see docs/offline.md."""
    output_max_rows_per_file: int = 1_000_000
    """Maximum number of agent steps per file."""
    output_config: Mapping[str, Any] = field(default_factory=dict)
    """Options of `offline.ParquetWriter`: "compression", "columns", "next_obs", "max_queue_size", "timeout_s"."""

    seed: int | None = None
    """Every reset of an env gets a seed derived from (seed, worker_index, incarnation, env index, reset count). This
    `reset_seed`, together with the actions, reproduces an episode. With None, envs are not seeded."""
    worker_index: int = 0
    """Runners with equal seeds but different worker_index use different random streams."""
    incarnation: int = 0
    """Number of times that the runner with this worker_index was rebuilt after being lost. Each value has separate
    random streams, so a rebuilt runner does not repeat earlier episodes."""
    in_evaluation: bool = False
    """True for an evaluation runner, which uses different random streams from a training runner with the same seed."""
    num_env_runners: int = 1
    """Number of runners that sample for one learner; set by the creator of a group. Modules with an exploration
    schedule receive as `t` the lifetime env steps of this runner times this number."""
    metrics_num_episodes_for_smoothing: int = 100
    """Number of most recent episodes over which `get_metrics()` computes means."""
    callbacks_class: Any = None
    """A class with the `on_...` methods of RLlib, or a list of such classes."""
    callbacks_on_environment_created: Any = None
    """A function, or a list of functions, called like `Callbacks.on_environment_created()`."""
    callbacks_on_episode_created: Any = None
    """Functions for `on_episode_created()`."""
    callbacks_on_episode_start: Any = None
    """Functions for `on_episode_start()`."""
    callbacks_on_episode_step: Any = None
    """Functions for `on_episode_step()`."""
    callbacks_on_episode_end: Any = None
    """Functions for `on_episode_end()`."""
    callbacks_on_sample_end: Any = None
    """Functions for `on_sample_end()`."""

    def __post_init__(self) -> None:
        for name in SWITCHES:
            object.__setattr__(self, name, check_bool(name, getattr(self, name)))
        for name in ("env_config", "model_config"):
            self._check(name, isinstance(getattr(self, name), Mapping), "a dict")
        for name, choices in CHOICES.items():
            self._check(name, getattr(self, name) in choices, f"one of {list(choices)}")
        for name, least in AT_LEAST.items():
            fits, other = is_integer_from(least, getattr(self, name)), ""
            if name == "rollout_fragment_length":
                fits, other = fits or getattr(self, name) == AUTO, f' or "{AUTO}"'
            self._check(name, fits, f"an integer >= {least}{other}")
        gpus, scale = self.num_gpus_per_env_runner, self.reward_scale
        size, most = self.env_batch_size, self.num_envs_per_env_runner
        threads = self.num_threads
        sizes = f"None or an integer from 1 to num_envs_per_env_runner={most}"
        self._check("num_gpus_per_env_runner", is_number(gpus) and gpus >= 0, "a number >= 0")
        self._check("env_batch_size", size is None or (is_integer_from(1, size) and size <= most), sizes)
        self._check("num_threads", threads is None or is_integer_from(1, threads), "None or a positive integer")
        self._check("seed", self.seed is None or is_integer_from(0, self.seed), "None or an integer >= 0")
        self._check("reward_scale", is_number(scale) and scale != 0, "a finite number other than 0")
        clips = "None, True, False, a positive number or a pair (low, high)"
        self._check("clip_rewards", self.clip_rewards is None or is_clip(self.clip_rewards), clips)
        only = "True: columns of episodes are arrays from the start; iterate over one to get its values one by one"
        self._check("episodes_to_numpy", self.episodes_to_numpy is True, only)
        check_timeout("step_timeout_s", self.step_timeout_s)
        folder = self.record_actions
        is_path = isinstance(folder, (str, os.PathLike)) and bool(os.fspath(folder))
        self._check("record_actions", folder is None or is_path, "None or the path to a folder")
        self._check_mapping_fn()
        self._check_policies_to_train()
        self._check_output()
        for name in (*AT_LEAST, "env_batch_size", "seed", "num_threads"):
            if (value := getattr(self, name)) is not None and value != AUTO:
                object.__setattr__(self, name, int(value))  # NumPy integers are accepted, too
        self._check_effects()

    def _check(self, name: str, fits: bool, allowed: str) -> None:
        if not fits:
            raise ConfigError(f"{name} must be {allowed}, got {getattr(self, name)!r}")

    def _check_effects(self) -> None:
        """Raise ConfigError for options whose value has no effect given the other options."""
        if self.env_batch_size is not None and self.gym_env_vectorize_mode != "async":
            raise ConfigError('env_batch_size requires worker processes; set gym_env_vectorize_mode="async"')
        if self.worker_num_splits > self.num_envs_per_env_runner:
            raise ConfigError(f"worker_num_splits={self.worker_num_splits} exceeds num_envs_per_env_runner="
                              f"{self.num_envs_per_env_runner}; each split needs at least one env")  # fmt: skip
        for is_on, needed, names in (
            (self.gym_env_vectorize_mode == "async", 'gym_env_vectorize_mode="async"', OF_WORKERS),
            (self.restart_failed_sub_environments, "restart_failed_sub_environments=True", OF_RESTARTS),
            (self.torch_compile_worker, "torch_compile_worker=True", OF_COMPILING),
            (self.output is not None, 'output="a folder"', OF_OUTPUT),
            (self.rollout_fragment_length == AUTO, f'rollout_fragment_length="{AUTO}"', OF_AUTO),
        ):
            for name in () if is_on else names:
                if (value := getattr(self, name)) != DEFAULTS[name]:
                    raise ConfigError(f"{name}={value!r} has no effect without {needed}")

    def _check_mapping_fn(self) -> None:
        mapping_fn = self.policy_mapping_fn
        if mapping_fn is None:
            if len(self.module_specs) != 1:
                among = sorted(self.module_specs)
                raise ConfigError(f"policy_mapping_fn is required to choose among the policies {among}")
            return
        self._check("policy_mapping_fn", callable(mapping_fn), "callable")
        if reason := misfit(mapping_fn, "agent_id", None):
            raise ConfigError(f"policy_mapping_fn must accept (agent_id, episode): {reason}")

    def _check_policies_to_train(self) -> None:
        chosen = self.policies_to_train
        if chosen is None or callable(chosen):
            return
        if isinstance(chosen, str) or not isinstance(chosen, Collection):
            raise ConfigError(f"policies_to_train must be module ids, a callable or None, got {chosen!r}")
        unknown = [module_id for module_id in chosen if module_id not in self.module_specs]
        if unknown:
            raise ConfigError(
                f"policies_to_train has unknown module ids {unknown}; choose from {sorted(self.module_specs)}"
            )

    def _check_output(self) -> None:
        self._check("output", self.output is None or isinstance(self.output, str | os.PathLike), "None or a folder")
        options = self.output_config
        known = isinstance(options, Mapping) and all(name in IN_OUTPUT_CONFIG for name in options)
        self._check("output_config", known, f"a dict with some of the keys {list(IN_OUTPUT_CONFIG)}")

    @property
    def stream_index(self) -> int:
        """Index that selects the random streams of this runner."""
        return self.worker_index + OF_EVALUATION * self.in_evaluation

    @property
    def module_specs(self) -> dict[str, Any]:
        """Module id -> its entry in `policies`, or None."""
        if self.policies is None:
            return {DEFAULT_MODULE_ID: None}
        if isinstance(self.policies, Mapping):
            specs = dict(self.policies)
        elif isinstance(self.policies, Collection) and not isinstance(self.policies, str):
            specs = dict.fromkeys(in_order("policies", self.policies))
        else:
            raise ConfigError(f"policies must be module ids or a dict keyed by module id, got {self.policies!r}")
        if not specs or not all(isinstance(module_id, str) for module_id in specs):
            raise ConfigError(f"policies must contain at least one module id, and all ids must be strings, got "
                              f"{self.policies!r}")  # fmt: skip
        return specs

    @property
    def total_train_batch_size(self) -> int:
        """`train_batch_size_per_learner` summed over all learners."""
        return self.train_batch_size_per_learner * (self.num_learners or 1)

    @property
    def is_multi_agent(self) -> bool:
        """True, for callbacks that query this attribute, as in RLlib."""
        return True

    @property
    def framework_str(self) -> str:
        """The string "torch", for callbacks that query this attribute, as in RLlib."""
        return "torch"

    def get_rollout_fragment_length(self, worker_index: int | None = None) -> int:
        """Return the number of steps per env in a sample() call without `num_timesteps` or `num_episodes`.

        With "auto", this is `total_train_batch_size` divided by the number of envs of all runners, but at least 1. Any
        remainder is distributed as one additional step per env over the first runners.

        Args:
            worker_index: Index of the runner, counted from 1 in a group; None uses `self.worker_index`.
        """
        if not isinstance(self.rollout_fragment_length, str):
            return self.rollout_fragment_length
        index = self.worker_index if worker_index is None else worker_index
        envs = self.num_envs_per_env_runner
        length, rest = divmod(self.total_train_batch_size, envs * self.num_env_runners)
        return max(1, length + ((index - 1) * envs < rest and rest > 0))

    def is_policy_to_train(self, module_id: str, batch: Any = None) -> bool:
        """Return True if `policies_to_train` selects the module `module_id`; a callable also receives `batch`."""
        chosen = self.policies_to_train
        if chosen is None:
            return True
        return bool(chosen(module_id, batch)) if callable(chosen) else module_id in chosen

    def module_id_for(self, agent_id: Hashable, episode: Any) -> str:
        """Return the result of the mapping function for `agent_id` and `episode`, or the id of the single module."""
        if self.policy_mapping_fn is None:
            return next(iter(self.module_specs))
        return self.policy_mapping_fn(agent_id, episode)


DEFAULTS = {
    option.name: option.default if option.default_factory is MISSING else option.default_factory()
    for option in fields(EnvRunnerConfig)
}
SWITCHES = [option.name for option in fields(EnvRunnerConfig) if option.type is bool]


def renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Rename options read from a file to their current names."""
    return {RENAMED.get(name, name): value for name, value in options.items()}

"""Changes to the runner config, and when each option takes effect."""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.core.envs.registry import env_creator
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.checks import check_integer
from fastmarl.runner.loop.building import check_module_options
from fastmarl.runner.loop.listeners import Listeners
from fastmarl.runner.loop.resources import Resources

MAKE_ENV = frozenset(
    {
        "env",
        "env_config",
        "num_envs_per_env_runner",
        "num_env_runners",
        "gym_env_vectorize_mode",
        "num_env_workers",
        "worker_num_splits",
        "env_batch_size",
        "env_worker_start_method",
        "step_timeout_s",
        "restart_failed_sub_environments",
        "failed_episodes",
        "max_restarts",
        "disable_env_checking",
        "record_env_state",
    }
)
MAKE_MODULE = frozenset({"policies", "rl_module_spec", "model_config", *CONNECTOR_OPTIONS, "keep_float64"})
ANY_MAKE = frozenset(
    {
        "reward_scale",
        "clip_rewards",
        "normalize_actions",
        "clip_actions",
        "episode_lookback_horizon",
        "late_rewards",
        "respawn",
        "native_inference",
        "num_threads",
        "inference_dtype",
        "cuda_graphs",
        "torch_compile_worker",
        "torch_compile_worker_dynamo_backend",
        "torch_compile_worker_dynamo_mode",
    }
)
FIXED = (  # used only when the runner is created
    "seed",
    "worker_index",
    "incarnation",
    "in_evaluation",
    "device",
    "num_gpus_per_env_runner",
    "metrics_num_episodes_for_smoothing",
    "record_actions",
    "output",
    "output_max_rows_per_file",
    "output_config",
)
WITH_POLICIES = ("policy_mapping_fn", "policies_to_train")  # wait until the modules they name exist
IGNORED = ("env_creator", "validate_env", "default_policy_class", "log_dir", "dataset_shards")  # as in RLlib


def of_worker(
    config: EnvRunnerConfig,
    worker_index: int | None,
    num_workers: int | None,
    recreated_worker: bool,
    others: Iterable[str],
) -> EnvRunnerConfig:
    """Return a runner's config with its constructor arguments applied.

    Raises:
        ConfigError: If `config` is not an EnvRunnerConfig, or the indices are invalid.
    """
    if not isinstance(config, EnvRunnerConfig):
        raise ConfigError(f"expected an EnvRunnerConfig, got {type(config).__name__}")
    if unknown := [name for name in others if name not in IGNORED]:
        warnings.warn(f"the runner's constructor ignores the unknown arguments {unknown}", stacklevel=4)
    given: dict[str, Any] = {"worker_index": worker_index}
    if num_workers is not None:
        check_integer("num_workers", num_workers, least=0)
        given["num_env_runners"] = max(1, num_workers)
    if recreated_worker:
        given["incarnation"] = config.incarnation + 1
    changes = {name: value for name, value in given.items() if value is not None and value != getattr(config, name)}
    return replace(config, **changes) if changes else config


def in_force(now: EnvRunnerConfig, wanted: EnvRunnerConfig, made: frozenset[str] = frozenset()) -> EnvRunnerConfig:
    """Return `wanted`, but with the current values of options that wait for `make_env()` or `make_module()`.

    Args:
        now: Active config.
        wanted: Config set by the user.
        made: Options that take effect now, because their parts are being rebuilt.
    """
    waiting = {*MAKE_ENV, *MAKE_MODULE, *ANY_MAKE} - made
    if "policies" in waiting and now.module_specs.keys() != wanted.module_specs.keys():
        waiting.update(WITH_POLICIES)
    kept = {name: getattr(now, name) for name in waiting if getattr(now, name) is not getattr(wanted, name)}
    return replace(wanted, **kept) if kept else wanted


def change_config(resources: Resources, listeners: Listeners, wanted: EnvRunnerConfig) -> None:
    """Set the config. Env and module options take effect when envs and modules are rebuilt, all others immediately.

    Raises:
        ConfigError: If `wanted` is not an EnvRunnerConfig, is invalid, or changes a fixed option. Nothing is changed.
        EnvCheckError: If its `env` is not an environment. Nothing is changed.
    """
    now = resources.config
    if not isinstance(wanted, EnvRunnerConfig):
        raise ConfigError(f"runner.config must be an EnvRunnerConfig, got {type(wanted).__name__}; assign a copy: "
                          f"runner.config = dataclasses.replace(runner.config, ...)")  # fmt: skip
    fixed = {name: (getattr(now, name), getattr(wanted, name)) for name in FIXED}
    if changed := {name: values for name, values in fixed.items() if values[0] != values[1]}:
        of_each = "; ".join(f"{name} is {before!r:.80}, got {after!r:.80}" for name, (before, after) in changed.items())
        raise ConfigError(f"these options are fixed once a runner is created: {of_each}. Nothing was changed; create "
                          f"a new runner with this config, and restore this one's get_state() in it")  # fmt: skip
    check_module_options(wanted)
    if wanted.env is not now.env:
        env_creator(wanted.env)
    config = in_force(now, wanted)
    listeners.follow(wanted)
    vars(resources).update(config=config, wanted=wanted)

"""Options that RLlib's `RolloutWorker` reads from its config, and that have no counterpart here."""

from functools import wraps
from typing import Any, TypeVar

from fastmarl.core.errors import ConfigError

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
"""Option of RLlib -> the way out."""
Config = TypeVar("Config")


def refuses_options_of_rllib(config_class: type[Config]) -> type[Config]:
    """Let a config raise one ConfigError with the ways out if it gets options `WITHOUT_COUNTERPART`."""
    make = config_class.__init__

    @wraps(make)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        if refused := [name for name in options if name in WITHOUT_COUNTERPART]:
            ways = "; ".join(f"{name} ({WITHOUT_COUNTERPART[name]})" for name in refused)
            raise ConfigError(f"{type(self).__name__} has no counterpart of these options; leave them out: {ways}")
        make(self, *args, **options)

    config_class.__init__ = checked  # type: ignore[method-assign]
    return config_class

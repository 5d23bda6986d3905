"""Whether the options of a group can be right."""

from typing import Any

from fastmarl.core.config import EnvRunnerConfig, check_integer, check_seconds
from fastmarl.core.errors import ConfigError
from fastmarl.distributed.fleet import NO_LIMIT

PLACEMENT_STRATEGIES = ("SPREAD", "DEFAULT")


def check_options(
    config: Any,
    *,
    num_env_runners: Any,
    make_batch: Any,
    placement_strategy: Any,
    max_restarts: Any,
    sample_timeout_s: Any,
    start_timeout_s: Any,
) -> None:
    """Raises ConfigError if one can't be; see `EnvRunnerGroup`."""
    if not isinstance(config, EnvRunnerConfig):
        raise ConfigError(f"expected an EnvRunnerConfig, got {type(config).__name__}")
    check_integer("num_env_runners", num_env_runners, least=0)
    check_integer("max_restarts", max_restarts, least=NO_LIMIT)
    check_seconds("sample_timeout_s", sample_timeout_s)
    check_seconds("start_timeout_s", start_timeout_s)
    if placement_strategy not in PLACEMENT_STRATEGIES:
        raise ConfigError(f"placement_strategy must be one of {list(PLACEMENT_STRATEGIES)}, got {placement_strategy!r}")
    if not callable(make_batch):
        raise ConfigError(f"make_batch must be a function (episodes, module) -> batch, got {make_batch!r:.200}")

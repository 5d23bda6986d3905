"""fastmarl samples multi-agent experience: many envs, many agents, several PyTorch policies."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastmarl.version import __version__

if TYPE_CHECKING:
    from fastmarl.arena import evaluate as evaluate
    from fastmarl.arena import tournament as tournament
    from fastmarl.callbacks import Callbacks as Callbacks
    from fastmarl.columns import Columns as Columns
    from fastmarl.config import EnvRunnerConfig as EnvRunnerConfig
    from fastmarl.envs.arrays import ArrayEnv as ArrayEnv
    from fastmarl.envs.base import MultiAgentEnv as MultiAgentEnv
    from fastmarl.envs.registry import register_env as register_env
    from fastmarl.episodes import MultiAgentEpisode as MultiAgentEpisode
    from fastmarl.episodes import SingleAgentEpisode as SingleAgentEpisode
    from fastmarl.modules import MultiRLModule as MultiRLModule
    from fastmarl.modules import RLModule as RLModule
    from fastmarl.modules import RLModuleSpec as RLModuleSpec
    from fastmarl.moments import RunningMoments as RunningMoments
    from fastmarl.policy import Policy as Policy
    from fastmarl.recorder import VideoCallback as VideoCallback
    from fastmarl.recorder import replay as replay
    from fastmarl.runner import MultiAgentEnvRunner as MultiAgentEnvRunner

_HOMES = {
    "ArrayEnv": "envs.arrays",
    "Callbacks": "callbacks",
    "Columns": "columns",
    "EnvRunnerConfig": "config",
    "MultiAgentEnv": "envs.base",
    "MultiAgentEnvRunner": "runner",
    "MultiAgentEpisode": "episodes",
    "MultiRLModule": "modules",
    "Policy": "policy",
    "RLModule": "modules",
    "RunningMoments": "moments",
    "RLModuleSpec": "modules",
    "SingleAgentEpisode": "episodes",
    "VideoCallback": "recorder",
    "evaluate": "arena",
    "register_env": "envs.registry",
    "replay": "recorder",
    "tournament": "arena",
}
__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: numba and torch take most of a second."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value

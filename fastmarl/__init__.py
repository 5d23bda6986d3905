"""Sample multi-agent experience from many envs and agents with several PyTorch policies."""

from typing import TYPE_CHECKING

# Public classes of the core use these import paths, and cloudpickle only searches loaded modules.
from fastmarl import connectors as connectors
from fastmarl import distributions as distributions
from fastmarl import envs as envs
from fastmarl import episodes as episodes
from fastmarl import errors as errors
from fastmarl import modules as modules
from fastmarl.core import __version__
from fastmarl.core.objects.public import imported_when_used

if TYPE_CHECKING:
    from fastmarl.core.callbacks import Callbacks as Callbacks
    from fastmarl.core.config import EnvRunnerConfig as EnvRunnerConfig
    from fastmarl.core.connectors.moments import RunningMeanStd as RunningMeanStd
    from fastmarl.core.envs.arrays import ArrayEnv as ArrayEnv
    from fastmarl.core.envs.base import MultiAgentEnv as MultiAgentEnv
    from fastmarl.core.envs.registry import register_env as register_env
    from fastmarl.core.episodes.multi_agent import MultiAgentEpisode as MultiAgentEpisode
    from fastmarl.core.episodes.single_agent import SingleAgentEpisode as SingleAgentEpisode
    from fastmarl.core.modules.base import RLModule as RLModule
    from fastmarl.core.modules.multi import MultiRLModule as MultiRLModule
    from fastmarl.core.modules.specs import RLModuleSpec as RLModuleSpec
    from fastmarl.core.spaces.columns import Columns as Columns
    from fastmarl.core.spaces.columns import Recorded as Recorded
    from fastmarl.play.arena.evaluation import evaluate as evaluate
    from fastmarl.play.arena.matches import tournament as tournament
    from fastmarl.play.policy import Policy as Policy
    from fastmarl.replays.playback import replay as replay
    from fastmarl.replays.video import VideoCallback as VideoCallback
    from fastmarl.runner.metrics.metrics_logger import MetricsLogger as MetricsLogger
    from fastmarl.runner.runner import MultiAgentEnvRunner as MultiAgentEnvRunner

_SUBMODULES = [
    "batches",
    "bench",
    "checkpoint",
    "distributed",
    "learning",
    "legacy",
    "offline",
    "play",
    "replays",
    "rllib",
    "testing",
    "training",
]
_names, __getattr__ = imported_when_used(__name__, _SUBMODULES)
__all__ = [*_names, "__version__"]

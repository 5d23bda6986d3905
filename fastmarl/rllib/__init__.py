"""The drop-in for RLlib: `config.env_runners(env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner)`. Needs Ray."""

from typing import TYPE_CHECKING, Any

from fastmarl.rllib.versions import untested_ray

if TYPE_CHECKING or untested_ray() is None:
    from fastmarl.rllib.runner import MultiAgentEnvRunner
else:
    from fastmarl.rllib.untested import MultiAgentEnvRunner

if TYPE_CHECKING:
    from fastmarl.rllib.learning.ppo import PPOTorchLearner

__all__ = ["MultiAgentEnvRunner", "PPOTorchLearner"]


def __getattr__(name: str) -> Any:
    """The learner is imported when somebody asks for it: all of PPO comes with it."""
    if name != "PPOTorchLearner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if untested_ray() is None:
        from fastmarl.rllib.learning.ppo import PPOTorchLearner
    else:
        from fastmarl.rllib.untested import PPOTorchLearner
    return PPOTorchLearner

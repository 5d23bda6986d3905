"""Drop-in for RLlib: `config.env_runners(env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner)`. Requires Ray."""

import importlib
from typing import TYPE_CHECKING, Any

from fastmarl.rllib.stand_in import untested_ray

if not TYPE_CHECKING and untested_ray():
    from fastmarl.rllib.stand_in import MultiAgentEnvRunner
else:  # last, because the API reference shows the last definition
    from fastmarl.rllib.runner import MultiAgentEnvRunner

if TYPE_CHECKING:
    from fastmarl.rllib.first_ready import FirstReadyPPO
    from fastmarl.rllib.learner.ppo import PPOTorchLearner
    from fastmarl.rllib.old_stack.worker import RolloutWorker

__all__ = ["FirstReadyPPO", "MultiAgentEnvRunner", "PPOTorchLearner", "RolloutWorker"]

ON_DEMAND = {"PPOTorchLearner": "learner.ppo", "RolloutWorker": "old_stack.worker"}
"""Name -> submodule, imported on first use because it loads all of PPO or the old API stack."""


def __getattr__(name: str) -> Any:
    if name == "FirstReadyPPO":  # works with any version of Ray
        return importlib.import_module("fastmarl.rllib.first_ready").FirstReadyPPO
    if name not in ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    where = ON_DEMAND[name] if untested_ray() is None else "stand_in"
    return getattr(importlib.import_module(f"fastmarl.rllib.{where}"), name)

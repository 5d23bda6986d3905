"""The drop-in for RLlib: `config.env_runners(env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner)`. Needs Ray."""

from typing import TYPE_CHECKING

from fastmarl.rllib.versions import untested_ray

if TYPE_CHECKING or untested_ray() is None:
    from fastmarl.rllib.runner import MultiAgentEnvRunner
else:
    from fastmarl.rllib.untested import MultiAgentEnvRunner

__all__ = ["MultiAgentEnvRunner"]

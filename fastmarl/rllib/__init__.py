"""The drop-in for RLlib: `config.env_runners(env_runner_cls=fastmarl.rllib.MultiAgentEnvRunner)`. Needs Ray."""

from fastmarl.rllib.runner import MultiAgentEnvRunner

__all__ = ["MultiAgentEnvRunner"]

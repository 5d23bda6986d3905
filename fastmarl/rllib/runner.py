"""RLlib's runner with fastmarl's core behind it."""

from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner


class MultiAgentEnvRunner(RLlibEnvRunner):
    """Takes the place of RLlib's class of the same name; returns the same episodes."""

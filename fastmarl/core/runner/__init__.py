"""The runner: it samples with envs and modules, and keeps their state."""

from fastmarl.core.runner.runner import MultiAgentEnvRunner as MultiAgentEnvRunner

"""Adapter for Gymnasium envs with a single agent."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym

from fastmarl.core.envs.gymnasium_joint import OF_MULTI_AGENT_ENVS, DictGymnasiumEnv, TupleGymnasiumEnv
from fastmarl.core.envs.gymnasium_wrapped import WrappedMultiAgentEnv
from fastmarl.core.envs.resumable import ResumableAdapter
from fastmarl.core.errors.checks import plain_seed

AGENT = 0  # as in envs from RLlib's make_multi_agent()


def has_one_agent(env: gym.Env) -> bool:
    """Return True unless something indicates that a Gymnasium env has several agents."""
    if TupleGymnasiumEnv.adapts(env) or DictGymnasiumEnv.adapts(env):
        return False
    return not (WrappedMultiAgentEnv.adapts(env) or any(hasattr(env, name) for name in OF_MULTI_AGENT_ENVS))


class SingleGymnasiumEnv(ResumableAdapter):
    """Adapts a single-agent env, such as `gym.make("CartPole-v1")`. The agent id is 0.

    Args:
        env: A gymnasium.Env, possibly in wrappers.
    """

    def __init__(self, env: Any):
        self.env = env
        self.possible_agents: list[Any] = [AGENT]
        self.agents = self.possible_agents
        self.observation_spaces: dict[Any, gym.Space] = {AGENT: env.observation_space}
        self.action_spaces: dict[Any, gym.Space] = {AGENT: env.action_space}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        obs, info = self.env.reset(seed=plain_seed(seed), options=options)
        return {AGENT: obs}, {AGENT: info}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Apply the action of the agent; see MultiAgentEnv."""
        obs, reward, terminated, truncated, info = self.env.step(actions[AGENT])
        terminated, truncated = bool(terminated), bool(truncated)
        return (
            {AGENT: obs},
            {AGENT: reward},
            {AGENT: terminated, "__all__": terminated},
            {AGENT: truncated, "__all__": truncated},
            {AGENT: info},
        )

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return self.observation_spaces[agent_id]

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return self.action_spaces[agent_id]

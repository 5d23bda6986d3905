"""PettingZoo's ParallelEnv in the multi-agent protocol, and what its AECEnv has in common with it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.envs.resumable import ResumableAdapter


class PettingZooAdapter(ResumableAdapter):
    """What the adapters of both kinds of PettingZoo envs share.

    Args:
        env: the PettingZoo env; `unwrapped` is it without its wrappers.
    """

    def __init__(self, env: Any):
        self.env = env
        self.possible_agents: list[Any] = list(getattr(env, "possible_agents", ()))

    @property
    def agents(self) -> list[Any]:
        """Ids of those that take part now."""
        return self.env.agents

    @property
    def state_space(self) -> gym.Space | None:
        """Of `state()`, if the env says."""
        return getattr(self.env, "state_space", None)

    def state(self) -> np.ndarray:
        """The env's global state, for central critics."""
        return self.env.state()

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return self.env.observation_space(agent_id)

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return self.env.action_space(agent_id)


class ParallelPettingZooEnv(PettingZooAdapter):
    """Adds the `__all__` flags: an episode is over when the env has no agents left.

    It is then truncated if some agent was truncated in that last step, else terminated. The env's own dicts stay as
    they are. An agent that vanishes from `agents` without a flag waits until the end of the episode.

    Args:
        env: a PettingZoo ParallelEnv; `unwrapped` is it without its wrappers.
    """

    @staticmethod
    def adapts(env: Any) -> bool:
        """Whether this is such an env."""
        methods = ("reset", "step", "observation_space", "action_space")
        return all(callable(getattr(env, name, None)) for name in methods)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """As the env's own, with `__all__` in terminateds, and in truncateds where it is True."""
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        if self.env.agents:
            return obs, rewards, {**terminateds, "__all__": False}, truncateds, infos
        is_truncated = any(truncateds.values())
        return (
            obs,
            rewards,
            {**terminateds, "__all__": not is_truncated},
            {**truncateds, "__all__": is_truncated},
            infos,
        )

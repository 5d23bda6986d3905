"""PettingZoo's ParallelEnv in the multi-agent protocol."""

from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np


class ParallelPettingZooEnv:
    """Adds the `__all__` flags: an episode is over when the env has no agents left.

    It is then truncated if some agent was truncated in that last step, else terminated.

    Args:
        env: a PettingZoo ParallelEnv; `unwrapped` is it without its wrappers.
    """

    def __init__(self, env: Any):
        self.env = env
        self.possible_agents = list(env.possible_agents)

    @property
    def agents(self) -> list[Any]:
        return self.env.agents

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        is_over = not self.env.agents
        is_truncated = is_over and any(truncateds.values())
        return (
            obs,
            rewards,
            {**terminateds, "__all__": is_over and not is_truncated},
            {**truncateds, "__all__": is_truncated},
            infos,
        )

    def state(self) -> np.ndarray:
        """The env's global state, for central critics."""
        return self.env.state()

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return self.env.observation_space(agent_id)

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return self.env.action_space(agent_id)

"""A small env of RLlib's kind, with options."""

import gymnasium as gym
import numpy as np
from ray.rllib.env.multi_agent_env import MultiAgentEnv


class Walk(MultiAgentEnv):
    """Two agents see zeros for `length` steps; `close()` can be made to fail."""

    fails_to_close = False

    def __init__(self, config):
        super().__init__()
        self.length = config.get("length", 5)
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Box(-1, 1, (config.get("size", 2),), np.float32))
        self.action_spaces = dict.fromkeys("ab", gym.spaces.Discrete(3))

    def observe(self):
        return {agent: np.zeros(self.observation_spaces[agent].shape, np.float32) for agent in "ab"}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observe(), {}

    def step(self, actions):
        self.t += 1
        over = self.t >= self.length
        return self.observe(), dict.fromkeys("ab", 1.0), {"__all__": over}, {"__all__": False}, {}

    def close(self):
        if Walk.fails_to_close:
            raise OSError("simulator is gone")

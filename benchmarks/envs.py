"""An environment with almost no cost."""

import gymnasium as gym
import numpy as np

import fastmarl


class EverNewAgents(fastmarl.MultiAgentEnv):
    """An endless episode in which the oldest agents end and new ones join at each step, with ids 0, 1, 2, ...

    Args:
        config: "live": number of agents at a time; "stay": number of steps of each.
    """

    def __init__(self, config):
        self.observation_space = gym.spaces.Box(0, 1, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self.live, self.change = config["live"], config["live"] // config["stay"]
        self.observation = np.zeros(4, np.float32)

    def reset(self, *, seed=None, options=None):
        self.n_ids = self.live
        return dict.fromkeys(range(self.live), self.observation), {}

    def step(self, actions):
        oldest, self.n_ids = self.n_ids - self.live, self.n_ids + self.change
        terminateds = {**dict.fromkeys(range(oldest, oldest + self.change), True), "__all__": False}
        obs = dict.fromkeys(range(oldest, self.n_ids), self.observation)
        return obs, dict.fromkeys(actions, 1.0), terminateds, {}, {}

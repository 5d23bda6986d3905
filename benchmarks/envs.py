"""Environments that cost (almost) nothing."""

import gymnasium as gym
import numpy as np

import fastmarl


class ReadyEnv(fastmarl.MultiAgentEnv):
    """Returns the same ready-made dicts of ready arrays at every step.

    Args:
        num_agents, obs_size, num_actions: Box(obs_size) observations, Discrete(num_actions) actions.
        episode_length: steps until everybody is truncated.
    """

    def __init__(self, num_agents, obs_size=8, num_actions=3, episode_length=200):
        self.possible_agents = [f"agent_{i}" for i in range(num_agents)]
        agents = self.possible_agents
        box = gym.spaces.Box(-1.0, 1.0, (obs_size,), np.float32)
        self.observation_spaces = dict.fromkeys(agents, box)
        self.action_spaces = dict.fromkeys(agents, gym.spaces.Discrete(num_actions))
        rng = np.random.default_rng(0)
        obs = {agent: rng.uniform(-1, 1, obs_size).astype(np.float32) for agent in agents}
        go_on = {**dict.fromkeys(agents, False), "__all__": False}
        infos = {agent: {} for agent in agents}
        rewards = dict.fromkeys(agents, 1.0)
        self._reset = obs, infos
        self._step = obs, rewards, go_on, go_on, infos
        self._last_step = obs, rewards, go_on, {**dict.fromkeys(agents, True), "__all__": True}, infos
        self._episode_length = episode_length
        self._t = 0

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return self._reset

    def step(self, actions):
        self._t += 1
        return self._step if self._t < self._episode_length else self._last_step

"""LBF for PettingZooWrapper: agents' ids are appended to observations, and rewards are the team's."""

from typing import ClassVar

import gymnasium as gym
import lbforaging  # noqa: F401 - registers its envs
import meter
import numpy as np
from pettingzoo import ParallelEnv
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.envs.utils import MarlGroupMapType


class Foraging(ParallelEnv):
    metadata: ClassVar = {"name": "lbforaging"}

    def __init__(self):
        self._env = gym.make(meter.TASK, disable_env_checker=True)
        self.possible_agents = [f"agent_{i}" for i in range(len(self._env.action_space))]
        self.agents = []
        self._ids = np.eye(len(self.possible_agents), dtype=np.float32)
        self._actions = dict(zip(self.possible_agents, self._env.action_space, strict=True))
        self._observations = {
            agent: gym.spaces.Box(np.append(space.low, 0 * id_), np.append(space.high, 0 * id_ + 1), dtype=np.float32)
            for agent, space, id_ in zip(self.possible_agents, self._env.observation_space, self._ids, strict=True)
        }

    def observation_space(self, agent):
        return self._observations[agent]

    def action_space(self, agent):
        return self._actions[agent]

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        obs, _ = self._env.reset(seed=seed)
        return self._seen(obs), {agent: {} for agent in self.agents}

    def step(self, actions):
        agents = self.agents
        obs, rewards, is_over, is_cut, _ = self._env.step([int(actions[agent]) for agent in agents])
        if is_over or is_cut:
            self.agents = []
        same = (float(sum(rewards)), is_over, is_cut, {})
        return (self._seen(obs), *(dict.fromkeys(agents, value) for value in same))

    def _seen(self, obs):
        return {
            agent: np.concatenate([each, id_])
            for agent, each, id_ in zip(self.possible_agents, obs, self._ids, strict=True)
        }


def make_env():
    return PettingZooWrapper(
        Foraging(), group_map=MarlGroupMapType.ALL_IN_ONE_GROUP, categorical_actions=True, use_mask=False
    )

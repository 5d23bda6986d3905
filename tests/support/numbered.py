"""An environment, of whichever base class, whose observations and rewards say where they come from."""

import gymnasium as gym
import numpy as np

OBS = gym.spaces.Box(-1e6, 1e6, (4,), np.float32)
JOINS = {"a": 0, "b": 2, "c": 0}
ENDS = {"a": None, "b": None, "c": 3}
LENGTHS = (6, 11, 4)


def reward_of(reset: int, t: int, agent: str) -> float:
    return reset + t / 8 + ord(agent) / 16


class Numbered:
    """Observations are (env, reset, env step, agent). It remembers its actions. "b" joins late, "c" ends early."""

    def __init__(self, number):
        super().__init__()
        self.agents = self.possible_agents = list(JOINS)
        self.observation_spaces = dict.fromkeys(self.agents, OBS)
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(3))
        self.number = number
        self.resets, self.received = -1, {}

    def reset(self, *, seed=None, options=None):
        self.resets, self.t = self.resets + 1, 0
        return self.obs(), {}

    def step(self, actions):
        self.received |= {(self.resets, self.t, agent): int(action) for agent, action in actions.items()}
        self.t += 1
        obs = self.obs()
        rewards = {agent: reward_of(self.resets, self.t, agent) for agent in obs}
        over = self.t == self.length(self.resets)
        return obs, rewards, {"__all__": over, "c": ENDS["c"] == self.t}, {"__all__": False}, {}

    def length(self, reset):
        return LENGTHS[(reset + self.number) % len(LENGTHS)]

    def obs(self):
        return {
            agent: np.array([self.number, self.resets, self.t, ord(agent)], np.float32)
            for agent, joins in JOINS.items()
            if joins <= self.t and (ENDS[agent] is None or self.t <= ENDS[agent])
        }

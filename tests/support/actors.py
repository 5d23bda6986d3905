"""An environment of fixed rewards, and a module of known actions."""

import gymnasium as gym
import numpy as np
import torch

import fastmarl

BOX = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Env(fastmarl.MultiAgentEnv):
    """Observations hold (number of the reset, env step); all rewards are 1. `length` steps, then truncated."""

    def __init__(self, config):
        self.length = config.get("length", 10)
        self.possible_agents = list(config.get("agents", ["a", "b"]))
        self.observation_spaces = dict.fromkeys(self.possible_agents, BOX)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(3))
        self.index = config.vector_index
        self.seeds, self.actions, self.closed = [], [], 0
        self.t = 0

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.t = 0
        return self._obs(), {}

    def step(self, actions):
        self.actions.append(actions)
        self.t += 1
        over = self.t == self.length
        rewards = dict.fromkeys(self.possible_agents, 1.0)
        return self._obs(), rewards, {"__all__": False}, {"__all__": over}, {}

    def close(self):
        self.closed += 1

    def _obs(self):
        return {agent: np.array([len(self.seeds), self.t], np.float32) for agent in self.possible_agents}


class Actor(torch.nn.Module):
    """Logits from one layer; `output` replaces or adds outputs."""

    def __init__(self, **output):
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)
        self.output = output

    def forward(self, batch):
        outputs = {"action_dist_inputs": self.layer(batch["obs"])}
        return {**outputs, **{name: make(batch["obs"]) for name, make in self.output.items()}}


def make_runner(env=Env, **options):
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, **{"seed": 1, **options}))

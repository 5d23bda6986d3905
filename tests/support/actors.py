"""An environment of fixed rewards, and a module of known actions."""

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from support.scripted import Scripted, Step

BOX = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Env(Scripted):
    """Observations hold (number of the reset, env step); all rewards are 1. `length` steps, then truncated."""

    def __init__(self, config):
        agents, length = list(config.get("agents", "ab")), config.get("length", 10)
        script = [Step(agents, dict.fromkeys(agents, 1.0), truncated=t == length) for t in range(length + 1)]
        super().__init__(script, space=BOX, see=lambda agent, t: np.array([len(self.seeds), t], np.float32))


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

"""The example of a simulator in C samples what its twin in Python samples, bit by bit."""

import runpy
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same
from support.process_runners import contents

import fastmarl

FILE = Path(__file__).parents[2] / "examples/c_env/berries.py"
WORD = 2**64 - 1
MOVES = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]


class Twin(fastmarl.MultiAgentEnv):
    """The rules of berries.c for one env."""

    def __init__(self, config):
        self.rules = {"num_agents": 2, "num_berries": 4, "size": 10, "length": 50, **config}
        self.possible_agents = [f"picker_{k}" for k in range(self.rules["num_agents"])]
        self.observation_space = gym.spaces.Box(-1, 1, (2 + 2 * self.rules["num_berries"],), np.float32)
        self.action_space = gym.spaces.Discrete(5)

    def draw(self):
        self.stream = (self.stream + 0x9E3779B97F4A7C15) & WORD
        z = self.stream
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        return z ^ (z >> 31)

    def cell(self):
        return [self.draw() % self.rules["size"] for _ in range(2)]

    def observed(self):
        size = np.float32(self.rules["size"])
        found = {}
        for agent, cell in zip(self.possible_agents, self.agents_at, strict=True):
            ways = [b - a for berry in self.berries for a, b in zip(cell, berry, strict=True)]
            found[agent] = np.array([*cell, *ways], np.float32) / size
        return found

    def reset(self, *, seed=None, options=None):
        self.stream, self.t = seed, 0
        self.agents_at = [self.cell() for _ in self.possible_agents]
        self.berries = [self.cell() for _ in range(self.rules["num_berries"])]
        return self.observed(), {}

    def step(self, actions):
        self.t += 1
        rewards = dict.fromkeys(self.possible_agents, 0.0)
        for number, agent in enumerate(self.possible_agents):
            moved = [at + by for at, by in zip(self.agents_at[number], MOVES[actions[agent]], strict=True)]
            within = [0 <= at < self.rules["size"] for at in moved]
            cell = self.agents_at[number] = [
                new if is_in else old for new, old, is_in in zip(moved, self.agents_at[number], within, strict=True)
            ]
            for k, berry in enumerate(self.berries):
                if berry == cell:
                    rewards[agent] += 1.0
                    self.berries[k] = self.cell()
        is_over = self.t >= self.rules["length"]
        return self.observed(), rewards, {"__all__": False}, {"__all__": is_over}, {}


@pytest.fixture(scope="module")
def berries():
    return runpy.run_path(str(FILE))["Berries"]


def chunks_of(env):
    config = fastmarl.EnvRunnerConfig(env=env, num_envs_per_env_runner=9, rollout_fragment_length=40, seed=5)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        return [contents(chunk) for _ in range(3) for chunk in runner.sample()]


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize(
    "rules", [{}, {"num_agents": 3, "num_berries": 9, "size": 3, "length": 7}, {"num_agents": 1, "size": 1}]
)
def test_the_simulator_in_c_is_its_twin(berries, rules, num_threads):
    in_c = chunks_of(lambda config: berries(config.num_envs, **rules, num_threads=num_threads))
    in_python = chunks_of(lambda config: Twin(rules))
    assert len(in_c) >= 27
    assert_same(in_c, in_python)

"""Environments whose levels depend on the seed of the reset."""

import gymnasium as gym
import numpy as np

import fastmarl
from support.batched import Batched
from support.process_runners import make_runner
from support.trouble import BOX


class Levels(fastmarl.MultiAgentEnv):
    """Draws all that its agents see from the seed of its reset."""

    def __init__(self, config):
        self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.possible_agents, BOX)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(3))
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.rng = np.random.default_rng(seed)
        self.t = 0
        self.length = self.rng.integers(2, 12)
        return self._obs(), {}

    def step(self, actions):
        self.t += 1
        rewards = {agent: float(self.rng.integers(9) + action) for agent, action in actions.items()}
        return self._obs(), rewards, {"__all__": self.t == self.length}, {"__all__": False}, {}

    def _obs(self):
        return {agent: self.rng.random(3, np.float32) for agent in self.possible_agents}


def make_batch(config):
    return Batched([Levels(config) for _ in range(config.num_envs)], ["a", "b"])


KINDS = {
    "sync": {"env": Levels, "mode": "sync"},
    "in parts": {"env": Levels, "mode": "sync", "worker_num_splits": 2},
    "workers": {"env": Levels, "num_workers": 2},
    "batch": {"env": make_batch, "mode": "sync"},
    "batches": {"env": make_batch, "mode": "sync", "worker_num_splits": 2},
}


def runner_of(kind, **options):
    return make_runner(num_envs=3, env_worker_start_method="fork", **{**KINDS[kind], **options})


def assert_can_be_made_again(episode):
    env = Levels({})
    obs, _ = env.reset(seed=episode.reset_seed)
    for t in range(len(episode)):
        actions = {agent: int(action) for agent, action in episode.get_actions(t).items()}
        for agent, expected in obs.items():
            assert episode.get_observations(t)[agent].tolist() == expected.tolist()
        obs, rewards, terminateds, _, _ = env.step(actions)
        assert episode.get_rewards(t) == rewards
    assert terminateds["__all__"]

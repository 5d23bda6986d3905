"""In steady state a tick asks for no memory: not for arrays, and Python's objects are gone when it ends."""

import tracemalloc

import gymnasium as gym
import numpy as np
import pytest
from reference.array_memory import counted_array_memory

import fastmarl
from fastmarl.envs.arrays import ArrayEnv

OBS, ACTIONS = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(3)


class Endless:
    """Three agents that see the same ready arrays for ever."""

    possible_agents = ("a", "b", "c")

    def __init__(self):
        self.observation_spaces = dict.fromkeys(self.possible_agents, OBS)
        self.action_spaces = dict.fromkeys(self.possible_agents, ACTIONS)
        self.observations = {agent: np.full(4, 0.5, np.float32) for agent in self.possible_agents}
        self.rewards = dict.fromkeys(self.possible_agents, 1.0)
        self.over = {**dict.fromkeys(self.possible_agents, False), "__all__": False}
        self.traced, self.n_traced = np.zeros(600, np.int64), 0

    def reset(self, *, seed=None, options=None):
        return self.observations, {}

    def step(self, actions):
        if tracemalloc.is_tracing():
            self.traced[self.n_traced] = tracemalloc.get_traced_memory()[0]
            self.n_traced += 1
        return self.observations, self.rewards, self.over, self.over, {}


class EndlessBatch(ArrayEnv):
    """The same as a batch; `absent` of the agents miss every second step."""

    def __init__(self, num_envs, absent=0):
        super().__init__(num_envs, {"all": ["a", "b", "c"]}, {"all": OBS}, {"all": ACTIONS})
        self.absent, self.t = absent, 0
        self.traced, self.n_traced = np.zeros(600, np.int64), 0

    def reset(self, env_indices, out, *, seeds=None):
        out.groups["all"].obs[env_indices] = 0.5

    def step(self, actions, out):
        if tracemalloc.is_tracing():
            self.traced[self.n_traced] = tracemalloc.get_traced_memory()[0]
            self.n_traced += 1
        group = out.groups["all"]
        group.obs.fill(0.5)
        group.rewards.fill(1.0)
        self.t += 1
        if self.absent:
            group.present[:, : self.absent].fill(self.t % 2 == 0)


ENVS = {
    "dicts": lambda context: Endless(),
    "a batch": lambda context: EndlessBatch(context.num_envs),
    "a batch with agents that wait": lambda context: EndlessBatch(context.num_envs, absent=2),
}


def a_runner(env):
    config = fastmarl.EnvRunnerConfig(
        env=env, num_envs_per_env_runner=4, seed=0, model_config={"fcnet_hiddens": [8]}, disable_env_checking=True
    )
    return fastmarl.MultiAgentEnvRunner(config)


@pytest.mark.parametrize("kind", ENVS)
def test_a_tick_allocates_no_array(kind):
    runner = a_runner(ENVS[kind])
    assert runner.inference_backends == {"default_policy": "lean"}
    for _ in range(3):
        runner.sample(num_timesteps=4 * 300)  # memory has grown to the size of a call
    counts = []
    for ticks in (100, 300):
        with counted_array_memory() as counter:
            runner.sample(num_timesteps=4 * ticks)
        counts.append(counter.n)
    assert counts[0] == counts[1] > 0  # what a call needs does not depend on the number of its ticks


def test_the_counter_counts():
    with counted_array_memory() as counter:
        kept = [np.empty(10) for _ in range(7)] + [np.zeros(10) for _ in range(3)]
    assert counter.n == 10
    np.empty(10)
    assert counter.n == 10 and len(kept) == 10


@pytest.mark.parametrize("kind", ENVS)
def test_memory_does_not_grow_within_a_call(kind):
    runner = a_runner(ENVS[kind])
    for _ in range(3):
        runner.sample(num_timesteps=4 * 600)
    tracemalloc.start()
    try:
        runner.sample(num_timesteps=4 * 600)
    finally:
        tracemalloc.stop()
    env = runner.env.envs[0]
    assert env.n_traced == 600
    assert np.ptp(env.traced[100:]) < 2000  # bytes

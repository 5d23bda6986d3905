"""In steady state a tick asks for no memory: not for arrays, and Python's objects are gone when it ends.

But envs with dicts of agents may keep the arrays that they are sent as actions: each is made for them alone.
"""

import tracemalloc

import gymnasium as gym
import numpy as np
import pytest
from support.array_memory import counted_array_memory

import fastmarl
from fastmarl.core.envs.arrays import ArrayEnv

N_ENVS, N_AGENTS = 4, 3
OBS, CHOICES = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(3)
SHIFTED_CHOICES = gym.spaces.Discrete(3, start=2)
FORCES = gym.spaces.Box(-2, 3, (2,), np.float32)


class Endless:
    """Three agents that see the same ready arrays for ever."""

    possible_agents = ("a", "b", "c")

    def __init__(self, actions):
        self.observation_spaces = dict.fromkeys(self.possible_agents, OBS)
        self.action_spaces = dict.fromkeys(self.possible_agents, actions)
        self.observations = {agent: np.full(4, 0.5, np.float32) for agent in self.possible_agents}
        self.rewards = dict.fromkeys(self.possible_agents, 1.0)
        self.over = {**dict.fromkeys(self.possible_agents, False), "__all__": False}
        self.traced, self.n_traced = np.zeros(300, np.int64), 0

    def reset(self, *, seed=None, options=None):
        return self.observations, {}

    def step(self, actions):
        if tracemalloc.is_tracing():
            self.traced[self.n_traced] = tracemalloc.get_traced_memory()[0]
            self.n_traced += 1
        return self.observations, self.rewards, self.over, self.over, {}


class EndlessBatch(ArrayEnv):
    """A batch of endless episodes; `absent` of the agents miss every second step."""

    def __init__(self, num_envs, actions, absent=0):
        super().__init__(num_envs, {"all": ["a", "b", "c"]}, {"all": OBS}, {"all": actions})
        self.absent, self.t = absent, 0
        self.traced, self.n_traced = np.zeros(300, np.int64), 0

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


KINDS = {  # name -> (function that makes an env, or a batch of n, options)
    "dicts": (lambda n: Endless(CHOICES), {}),
    "dicts, shifted": (lambda n: Endless(SHIFTED_CHOICES), {}),
    "a batch": (lambda n: EndlessBatch(n, CHOICES), {}),
    "a batch with agents that wait": (lambda n: EndlessBatch(n, CHOICES, absent=2), {}),
    "a batch, shifted": (lambda n: EndlessBatch(n, SHIFTED_CHOICES), {}),
    "a batch, scaled": (lambda n: EndlessBatch(n, FORCES), {}),
    "a batch, scaled, with agents that wait": (lambda n: EndlessBatch(n, FORCES, absent=2), {}),
    "a batch, clipped": (lambda n: EndlessBatch(n, FORCES), {"normalize_actions": False, "clip_actions": True}),
    "batches in turn": (lambda n: EndlessBatch(n, CHOICES), {"worker_num_splits": 2}),
    "batches in turn, scaled": (lambda n: EndlessBatch(n, FORCES, absent=2), {"worker_num_splits": 2}),
    "a batch, deterministic": (lambda n: EndlessBatch(n, FORCES), {"explore": False}),
    "a batch, deterministic choices": (lambda n: EndlessBatch(n, CHOICES), {"explore": False}),
}
KINDS_WITH_COPIES = {
    "dicts, scaled": (lambda n: Endless(FORCES), {}),
    "dicts, clipped": (lambda n: Endless(FORCES), {"normalize_actions": False, "clip_actions": True}),
}


def a_runner(make_env, options):
    config = fastmarl.EnvRunnerConfig(
        env=lambda context: make_env(context.num_envs),
        num_envs_per_env_runner=N_ENVS,
        seed=0,
        model_config={"fcnet_hiddens": [8]},
        disable_env_checking=True,
        **options,
    )
    return fastmarl.MultiAgentEnvRunner(config)


def arrays_made(kind, tick_counts):
    """Return the number of arrays that each call makes, one call per number of ticks."""
    runner = a_runner(*kind)
    assert runner.inference_backends == {"default_policy": "native"}
    for _ in range(3):
        runner.sample(num_timesteps=N_ENVS * 300)  # memory has grown to the size of a call
    counts = []
    for ticks in tick_counts:
        with counted_array_memory() as counter:
            runner.sample(num_timesteps=N_ENVS * ticks)
        counts.append(counter.n)
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_a_tick_allocates_no_array(kind):
    few, many = arrays_made(KINDS[kind], (100, 300))
    assert few == many > 0  # what a call needs does not depend on the number of its ticks


@pytest.mark.parametrize("kind", KINDS_WITH_COPIES)
def test_a_tick_allocates_no_array_but_those_that_envs_may_keep(kind):
    few, many = arrays_made(KINDS_WITH_COPIES[kind], (100, 300))
    assert many - few == 200 * N_ENVS * N_AGENTS
    assert few > 100 * N_ENVS * N_AGENTS


def test_the_counter_counts():
    with counted_array_memory() as counter:
        kept = [np.empty(10) for _ in range(7)] + [np.zeros(10) for _ in range(3)]
    assert counter.n == 10
    np.empty(10)
    assert counter.n == 10 and len(kept) == 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, *KINDS_WITH_COPIES])
def test_memory_does_not_grow_within_a_call(kind):
    runner = a_runner(*{**KINDS, **KINDS_WITH_COPIES}[kind])
    for _ in range(3):
        runner.sample(num_timesteps=N_ENVS * 300)
    tracemalloc.start()
    try:
        runner.sample(num_timesteps=N_ENVS * 300)
    finally:
        tracemalloc.stop()
    env = runner.env.envs[0]
    assert env.n_traced == 300
    assert np.ptp(env.traced[100:]) < 2000  # bytes

"""Chunks of short calls that are kept for long, as in a replay buffer."""

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv

import fastmarl.rllib
from fastmarl.rllib.store.block import RLlibBlock

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own


class Pair(MultiAgentEnv):
    """Two agents that see 16 numbers, for ever."""

    def __init__(self, config=None):
        super().__init__()
        self.possible_agents = self.agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Box(-1, 1, (16,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(3))
        self.obs = {agent: np.zeros(16, np.float32) for agent in self.agents}

    def reset(self, *, seed=None, options=None):
        return self.obs, {}

    def step(self, actions):
        return self.obs, dict.fromkeys(self.agents, 1.0), {"__all__": False}, {"__all__": False}, {}


def make_runner():
    config = (
        PPOConfig()
        .environment(Pair)
        .multi_agent(policies={"p"}, policy_mapping_fn=lambda agent_id, *args, **kwargs: "p")
        .env_runners(num_env_runners=0)
        .rl_module(model_config={"fcnet_hiddens": [4]})
    )
    return fastmarl.rllib.MultiAgentEnvRunner(config=config)


def test_chunks_of_short_calls_do_not_hold_a_long_calls_memory():
    runner = make_runner()
    runner.sample(num_timesteps=1000)
    runner.sample(num_timesteps=10)
    assert runner.is_accelerated
    kept = [runner.sample(num_timesteps=10) for _ in range(5)]
    runner.stop()
    for (chunk,) in kept:
        (columns,) = chunk._origin[0].modules
        assert not callable(columns.leaves)  # which would hold the rows of all that its call had room for
        assert sum(leaf.nbytes for leaf in columns.obs) < 10_000
        assert chunk.agent_episodes["a"].get_observations().shape == (11, 16)


@pytest.mark.parametrize("steps", [8, 700])
def test_no_block_grows_in_a_call_of_so_many_steps(steps, monkeypatch):
    copied, bind = [], RLlibBlock._bind

    def watched(block, capacity):
        copied.append(block.rows.n)
        bind(block, capacity)

    monkeypatch.setattr(RLlibBlock, "_bind", watched)
    runner = make_runner()
    for _ in range(3):
        runner.sample(num_timesteps=steps)
    assert runner.is_accelerated
    runner.stop()
    assert copied and not any(copied)

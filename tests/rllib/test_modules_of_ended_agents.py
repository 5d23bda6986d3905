"""After cuts, RLlib keeps the modules of some ended agents, and asks for those of others again."""

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from rllib.differential.cases import case
from rllib.differential.runs import Sample, play

from fastmarl.rllib import MultiAgentEnvRunner

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own


class Dropout(MultiAgentEnv):
    """Agents 1 and 2 end in the first step."""

    def __init__(self, config):
        super().__init__()
        self.agents = self.possible_agents = [0, 1, 2]
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Box(-1, 1, (2,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(3))

    def reset(self, *, seed=None, options=None):
        self.is_first = True
        return self._observations([0, 1, 2]), {}

    def step(self, actions):
        ends = {1: True, 2: True} if self.is_first else {}
        self.is_first = False
        return self._observations(actions), dict.fromkeys(actions, 1.0), {**ends, "__all__": False}, {}, {}

    def _observations(self, agents):
        return {agent: np.zeros(2, np.float32) for agent in agents}


@pytest.mark.parametrize("lookback", [1, 2, 3, 5])
def test_ended_agents_keep_their_module_as_long_as_in_rllib(lookback):
    """The mapping function gives others another module, if it is asked once more."""
    calls = [Sample(num_timesteps=n) for n in (3, 1, 1, 2, 1, 1, 3, 1)]
    one = case(calls=calls, env=Dropout, mapping="object", num_envs=1, lookback=lookback)
    want, got = play(one, RLlibEnvRunner), play(one, MultiAgentEnvRunner)
    assert want.error is None
    assert got.is_accelerated
    for theirs, ours in zip(want.episodes, got.episodes, strict=True):
        assert [ours.module_for(agent) for agent in range(3)] == [theirs.module_for(agent) for agent in range(3)]

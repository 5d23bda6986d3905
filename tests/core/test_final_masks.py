"""The mask of an agent's last observation, in aligned columns."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import fastmarl
from fastmarl import RLModuleSpec
from fastmarl.batches import aligned

SPACES = {
    "an array": (gym.spaces.Box(0, 9, (2,), np.float32), lambda n: np.full(2, n, np.float32)),
    "an object": (gym.spaces.Text(9), str),
    "objects": (gym.spaces.Sequence(gym.spaces.Discrete(9)), lambda n: (n, n)),
}
FIRST, LATER = np.array([1, 0, 1], np.int8), np.array([0, 1, 1], np.int8)


class TwoSteps(fastmarl.MultiAgentEnv):
    """One agent, truncated in its second step, with or without a last observation and its mask."""

    def __init__(self, config):
        self.possible_agents = self.agents = ["a"]
        self.space, self.value = SPACES[config["space"]]
        self.observation_spaces, self.action_spaces = {"a": self.space}, {"a": gym.spaces.Discrete(3)}
        self.at_the_end = config["at_the_end"]

    def reset(self, *, seed=None, options=None):
        self.n = 0
        return {"a": self.value(0)}, {"a": {"action_mask": FIRST}}

    def step(self, actions):
        self.n += 1
        if self.n < 2:
            return (
                {"a": self.value(1)},
                {"a": 1.0},
                {"__all__": False},
                {"__all__": False},
                {"a": {"action_mask": LATER}},
            )
        obs, infos = self.at_the_end(self.value)
        return obs, {"a": 1.0}, {"__all__": False}, {"__all__": True}, infos


class Unmasked(fastmarl.RLModule):
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), 3)}


def of_another(value):
    return {"a": value(2)}, {"a": {"action_mask": FIRST}}


def of_another_without(value):
    return {"a": value(2)}, {}


def missing(value):
    return {}, {}


@pytest.mark.filterwarnings("ignore:.*parts that are not arrays")
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("at_the_end", "expected"), [
    (of_another, FIRST),
    (of_another_without, [1, 1, 1]),
    (missing, LATER),  # the last observation is repeated, and so is its mask
])  # fmt: skip
def test_final_masks_belong_to_the_final_observations(space, at_the_end, expected):
    config = fastmarl.EnvRunnerConfig(
        env=TwoSteps, env_config={"space": space, "at_the_end": at_the_end}, rl_module_spec=RLModuleSpec(Unmasked)
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        (batch,) = aligned(runner.sample(num_episodes=1)).values()
    assert batch["final_action_mask"].tolist() == [[list(expected)]]
    assert batch["continues"].tolist() == [[True]]

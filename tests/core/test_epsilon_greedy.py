"""EpsilonGreedyRLModule in a runner: how often it acts at random, and what it does otherwise."""

from collections import deque
from fractions import Fraction

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.scripted import Scripted

import fastmarl
from fastmarl.errors import ConfigError
from fastmarl.modules import EpsilonGreedyModelConfig, EpsilonGreedyRLModule

N = 4
SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)


def module_of(space=SPACE, **config):
    torch.manual_seed(0)
    return EpsilonGreedyRLModule(
        observation_space=space, action_space=gym.spaces.Discrete(N), model_config={"fcnet_hiddens": [4], **config}
    )


def shares(module, t, n=20_000):
    """Return the shares of the actions by rank of their values, from the smallest on."""
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32))
    torch.manual_seed(1)
    with torch.no_grad():
        values = module.forward_inference({"obs": obs})["action_dist_inputs"]
        logits = module.forward_exploration({"obs": obs}, t=t)["action_dist_inputs"]
    actions = module.get_exploration_action_dist_cls().from_logits(logits).sample()
    ranks = values.argsort(-1).argsort(-1).gather(1, actions[:, None])[:, 0]
    return (torch.bincount(ranks, minlength=N) / n).tolist()


@pytest.mark.parametrize(
    ("t", "epsilon"), [(0, 1.0), (50, 0.6), (100, 0.2), (300, 0.2), (None, 0.2)], ids=lambda value: str(value)
)
def test_random_actions_are_as_frequent_as_the_schedule_says(t, epsilon):
    found = shares(module_of(epsilon=[[0, 1.0], [100, 0.2]]), t)
    each = epsilon / N
    assert found == pytest.approx([each] * (N - 1) + [1 - epsilon + each], abs=0.015)


@pytest.mark.parametrize("memory", [{}, {"use_gru": True, "gru_cell_size": 3}], ids=["", "gru"])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_no_action_is_drawn_that_the_mask_forbids(epsilon, memory):
    space = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(N), "obs": SPACE})
    rng = np.random.default_rng(0)
    masks = [rng.permutation([1, 1, 0, 0]).astype(np.int8) for _ in range(60)]

    def see(agent, t):
        return {"action_mask": masks[t], "obs": rng.normal(size=3).astype(np.float32)}

    env = Scripted(["a"] * 60, space=space, action_space=gym.spaces.Discrete(N), see=see)
    config = fastmarl.EnvRunnerConfig(
        env=lambda _: env,
        rl_module_spec=fastmarl.RLModuleSpec(module_class=EpsilonGreedyRLModule),
        model_config={"fcnet_hiddens": [4], "epsilon": [[0, epsilon]], **memory},
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        runner.sample(num_timesteps=50)
    actions = [int(each["a"]) for each in env.actions]
    assert len(actions) == 50 and all(mask[action] for mask, action in zip(masks, actions, strict=False))
    assert epsilon == 0 or len({*actions}) == N


@pytest.mark.parametrize(
    "epsilon",
    [[], [[5, 1.0], [0, 0.5]], [[0, 1.5]], [0, 1, 2], [[0, "a"]], [0, 1], [[0, 0, 1, 1]], [[float("nan"), 1]], 3],
)
def test_schedules_that_are_none(epsilon):
    with pytest.raises(ConfigError, match="epsilon must be"):
        EpsilonGreedyModelConfig(epsilon=epsilon)


def test_schedules_of_any_sequences_are_kept_as_tuples():
    config = EpsilonGreedyModelConfig(epsilon=deque([np.array([0, 1]), (50, Fraction(1, 4))]))
    assert config.epsilon == ((0.0, 1.0), (50.0, 0.25))


def test_actions_must_be_discrete():
    with pytest.raises(ConfigError, match="Q-networks need a Discrete action space, got Box"):
        EpsilonGreedyRLModule(observation_space=SPACE, action_space=SPACE)

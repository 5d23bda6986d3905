"""Settings of torch that a program may have made for itself: its default dtype, its autocast."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.exhaustive import further
from support.scripted import counting, scripted

import fastmarl

SPACES = {
    "vector": gym.spaces.Box(-1, 1, (3,), np.float32),
    "float64": gym.spaces.Box(-1, 1, (3,), np.float64),
    "image": gym.spaces.Box(0, 255, (42, 42, 3), np.uint8),
    "nested": gym.spaces.Dict({"a": gym.spaces.Discrete(4), "b": gym.spaces.Box(0, 1, (2,), np.float32)}),
}
ACTIONS = {
    "discrete": gym.spaces.Discrete(3),
    "box": gym.spaces.Box(-1, 1, (2,), np.float32),
    "multi": gym.spaces.MultiDiscrete([2, 3]),
    "binary": gym.spaces.MultiBinary(3),
}


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


CASES = [("vector", name, {}) for name in ACTIONS] + [
    (name, "discrete", options)
    for name in SPACES
    for options in ({}, {"use_lstm": True, "lstm_cell_size": 4}, {"vf_share_layers": False})
]


@pytest.mark.parametrize(
    ("setting", "native"),
    [("float64", True), ("autocast", False), *further([("float64", False), ("autocast", True)])],
)
@pytest.mark.parametrize(("obs", "actions", "options"), CASES)
def test_default_nets_act_in_float32(setting, native, obs, actions, options, request, tmp_path):
    see = lambda agent, t: SPACES[obs].sample()  # noqa: E731
    env = scripted(counting(2, 4), space=SPACES[obs], action_space=ACTIONS[actions], see=see)
    model = {"fcnet_hiddens": [8], "head_fcnet_hiddens": [4], **options}
    config = fastmarl.EnvRunnerConfig(env=env, seed=1, native_inference=native, model_config=model)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        runner.save_to_path(tmp_path)
    request.getfixturevalue(setting)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for explore in (True, False):
            for chunk in runner.sample(num_timesteps=6, explore=explore):
                for part in chunk.agent_episodes.values():
                    assert part.get_extra_model_outputs("action_dist_inputs").dtype == np.float32
        runner.restore_from_path(tmp_path)
        runner.sample(num_episodes=1)
    policy = fastmarl.Policy.from_checkpoint(tmp_path)
    assert policy.act(SPACES[obs].sample(), "agent_0") in ACTIONS[actions]

"""Observations of dtypes that numba or torch lacks: they are sampled as others, or refused when the runner is made."""

import gymnasium as gym
import numpy as np
import pytest
from support.scripted import counting, scripted

import fastmarl
from fastmarl.connectors import FlattenObservations, FrameStacking, MeanStdFilter, PrevActionsPrevRewards
from fastmarl.errors import ConfigError

CONNECTORS = {
    "none": lambda: None,
    "filter": lambda: [MeanStdFilter()],
    "frames": lambda: [FrameStacking(num_frames=2)],
    "flat": lambda: [FlattenObservations()],
    "former actions": lambda: [PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=1), FlattenObservations()],
    "all": lambda: [MeanStdFilter(), FrameStacking(num_frames=3)],
}


class Net(fastmarl.RLModule):
    def _forward(self, batch, **kwargs):
        obs = batch["obs"]
        seen = obs.reshape(len(obs), -1).float()
        return {"actions": seen[:, :2].half() / 16, "seen": seen}


def make_runner(dtype, connectors):
    space = gym.spaces.Box(-9, 9, (2, 3), np.float32)
    space.dtype = np.dtype(dtype)
    space.low, space.high = space.low.astype(dtype), space.high.astype(dtype)
    env = scripted(counting(2, 5), space=space, action_space=gym.spaces.Box(-1, 1, (2,), np.float16),
                   see=lambda agent, t: np.full((2, 3), t + 1, dtype))  # fmt: skip
    spec = fastmarl.RLModuleSpec(module_class=Net)
    config = fastmarl.EnvRunnerConfig(env=env, rl_module_spec=spec, seed=0,
                                      env_to_module_connector=CONNECTORS[connectors]())  # fmt: skip
    return fastmarl.MultiAgentEnvRunner(config)


def sampled(dtype, connectors):
    with make_runner(dtype, connectors) as runner:
        return [part for chunk in runner.sample(num_episodes=2) for part in chunk.agent_episodes.values()]


@pytest.mark.parametrize("connectors", CONNECTORS)
def test_float16_is_seen_as_float32_is(connectors):
    pairs = list(zip(*(sampled(dtype, connectors) for dtype in (np.float16, np.float32)), strict=True))
    assert pairs
    for half, single in pairs:
        seen, expected = (part.get_extra_model_outputs("seen") for part in (half, single))
        assert seen.any()
        np.testing.assert_array_equal(seen, expected)
        np.testing.assert_array_equal(half.get_actions(), single.get_actions())


@pytest.mark.parametrize("connectors", ["filter", "all", "flat", "former actions"])
def test_longdouble_is_sampled_where_connectors_make_float32_of_it(connectors):
    for part in sampled(np.longdouble, connectors):
        assert part.get_extra_model_outputs("seen").any()


@pytest.mark.parametrize("connectors", ["none", "frames"])
def test_longdouble_is_refused_when_the_runner_is_made_otherwise(connectors):
    with pytest.raises(ConfigError, match=r"torch does not support observations of dtype (longdouble|float128)"):
        make_runner(np.longdouble, connectors)


def test_moments_take_float16(rng):
    rows = rng.normal(size=(20, 3)).astype(np.float16)
    half, single = fastmarl.RunningMeanStd(3), fastmarl.RunningMeanStd(3)
    half.update(rows)
    single.update(rows.astype(np.float32))
    np.testing.assert_array_equal(half.mean, single.mean)
    np.testing.assert_array_equal(half.std, single.std)

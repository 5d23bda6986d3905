"""Multi-agent envs in Gymnasium's wrappers."""

import importlib
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.gymnasium_wrapped import WrappedMultiAgentEnv
from fastmarl.errors import EnvCheckError
from fastmarl.testing import check_env

BOX, MOVES = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)


class Walk(fastmarl.MultiAgentEnv, gym.Env):
    """Two agents, six steps; each receives 1 per step."""

    metadata: ClassVar = {"render_modes": []}
    render_mode = spec = None

    def __init__(self, config=None):
        self.possible_agents = self.agents = [0, 1]
        self.observation_spaces, self.action_spaces = {0: BOX, 1: BOX}, {0: MOVES, 1: MOVES}
        self.observation_space, self.action_space = map(gym.spaces.Dict, (self.observation_spaces, self.action_spaces))

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {}

    def step(self, actions):
        self.t += 1
        obs = {agent: np.full(2, self.t / 10, np.float32) for agent in self.agents}
        return obs, dict.fromkeys(self.agents, 1.0), {"__all__": self.t >= 6}, {"__all__": False}, {}


class TenMore(gym.Wrapper):
    def step(self, actions):
        obs, rewards, *rest = self.env.step(actions)
        return obs, {agent: reward + 10 for agent, reward in rewards.items()}, *rest


class Halved(gym.Wrapper):
    """Shows half of each observation."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Dict(dict.fromkeys(range(2), gym.spaces.Box(-1, 1, (1,), np.float32)))

    def reset(self, **options):
        obs, infos = self.env.reset(**options)
        return {agent: value[:1] for agent, value in obs.items()}, infos

    def step(self, actions):
        obs, *rest = self.env.step(actions)
        return {agent: value[:1] for agent, value in obs.items()}, *rest


class HalvedAgain(Halved):
    """Halves observations again, in the form of a multi-agent env."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_spaces = dict(self.observation_space.spaces)


@pytest.fixture
def registered():
    gym.register("Walk-v0", entry_point=Walk, max_episode_steps=100)
    yield
    del gym.registry["Walk-v0"]


WAYS = {
    "TimeLimit": lambda config: gym.wrappers.TimeLimit(Walk(), 100),
    "gymnasium.make": lambda config: gym.make("Walk-v0", disable_env_checker=True),
    "by name": "Walk-v0",
    "rewards": lambda config: TenMore(Walk()),
    "rewards, limited": lambda config: gym.wrappers.TimeLimit(TenMore(gym.wrappers.OrderEnforcing(Walk())), 100),
}


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("way", WAYS)
def test_wrapped_envs_act_as_they_do_without(way):
    config = fastmarl.EnvRunnerConfig(env=WAYS[way], seed=0, model_config={"fcnet_hiddens": []})
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        (episode,) = runner.sample(num_timesteps=6)
    returns = {agent: part.get_return() for agent, part in episode.agent_episodes.items()}
    assert returns == dict.fromkeys(range(2), 66 if "rewards" in way else 6)
    assert (episode.is_terminated, episode.is_truncated) == (True, False)
    assert check_env(WAYS[way], steps=20).ok


class OfOneSpace(Walk):
    def __init__(self, config=None):
        super().__init__()
        self.possible_agents, self.observation_space, self.action_space = [], BOX, MOVES
        self.observation_spaces, self.action_spaces = None, None


class OfSpacesById(Walk):
    def __init__(self, config=None):
        super().__init__()
        self.possible_agents = []
        if config:
            self.observation_spaces, self.action_spaces = None, None


@pytest.mark.parametrize("options", [{}, {"gym_env_vectorize_mode": "async", "env_worker_start_method": "fork"}])
@pytest.mark.parametrize(
    "env",
    [
        lambda config: TenMore(OfOneSpace()),
        lambda config: TenMore(OfSpacesById()),
        lambda config: TenMore(OfSpacesById("Dict spaces alone")),
    ],
)
def test_the_spaces_of_envs_that_list_no_agents_are_known(env, options):
    config = fastmarl.EnvRunnerConfig(env=env, **options)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        (episode,) = runner.sample(num_episodes=1)
    assert {agent: part.get_return() for agent, part in episode.agent_episodes.items()} == {0: 66, 1: 66}


@pytest.mark.parametrize("halved", [Halved, HalvedAgain])
def test_the_spaces_of_wrappers_around_envs_that_list_no_agents(halved):
    config = fastmarl.EnvRunnerConfig(env=lambda config: halved(OfSpacesById()))
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        assert runner.get_spaces()["__env__"][0][1].shape == (1,)
        assert len(runner.sample(num_episodes=1)) == 1


def test_a_limit_truncates_all():
    env = as_multi_agent_env(gym.wrappers.TimeLimit(Walk(), 2))
    env.reset()
    assert [env.step({0: 0, 1: 0})[2:4] for _ in range(2)] == [
        ({"__all__": False}, {"__all__": False}),
        ({"__all__": False}, {"__all__": True}),
    ]


@pytest.mark.parametrize("halved", [Halved, HalvedAgain])
@pytest.mark.parametrize("wrap", [lambda env: env, TenMore], ids=["alone", "in another"])
def test_spaces_are_those_of_the_wrapper_that_changes_them(halved, wrap):
    env = as_multi_agent_env(wrap(halved(Walk())))
    assert env_spaces(env, 1) == (gym.spaces.Box(-1, 1, (1,), np.float32), MOVES)
    assert env.reset()[0][1].shape == (1,)
    assert check_env(lambda config: wrap(halved(Walk())), steps=20).ok


def test_attributes_are_those_of_the_env():
    walk = Walk()
    walk.state, walk.state_space = lambda: np.arange(3), BOX
    env = as_multi_agent_env(TenMore(walk))
    assert isinstance(env, WrappedMultiAgentEnv)
    assert (env.possible_agents, env.agents, env.unwrapped, env.state_space) == ([0, 1], [0, 1], walk, BOX)
    assert env.state().tolist() == [0, 1, 2]
    assert not env.supports_checkpoint


def test_wrapped_envs_of_one_agent_are_still_refused():
    with pytest.raises(EnvCheckError, match="a single-agent environment"):
        as_multi_agent_env(gym.make("CartPole-v1"))


@pytest.mark.needs("ray")
def test_rllibs_envs_in_wrappers():
    rllibs = importlib.import_module("ray.rllib.env.multi_agent_env").MultiAgentEnv
    env = as_multi_agent_env(TenMore(type("Walk", (Walk, rllibs), {})()))
    env.reset()
    assert env.step({0: 0, 1: 1})[1:4] == ({0: 11.0, 1: 11.0}, {"__all__": False}, {"__all__": False})

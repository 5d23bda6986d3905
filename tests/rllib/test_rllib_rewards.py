"""Rewards, infos and steps out of the ordinary, in RLlib's runner and in ours."""

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from rllib.differential.cases import METRICS, case
from rllib.differential.configs import make_config
from rllib.differential.runs import Sample, differences, play
from support.exhaustive import further

from fastmarl.rllib import MultiAgentEnvRunner

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own
OBS = gym.spaces.Box(-1, 1, (2,), np.float32)
BEYOND_FLOATS = 10**400
HANDLE = (i for i in ())
"""Can't be copied."""


class Patience(MultiAgentEnv):
    """Agent 1 waits from its first action to the end. Both get a reward in each step, in turn from "rewards".

    Agent 0 always gets the same info.
    """

    def __init__(self, config):
        super().__init__()
        self.rules, self.info = config, {"handle": HANDLE, "seen": []}
        self.agents = self.possible_agents = [0, 1]
        self.observation_spaces = dict.fromkeys(self.agents, OBS)
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(3))

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._observations([0, 1]), {}

    def step(self, actions):
        reward = self.rules["rewards"][self.t % len(self.rules["rewards"])]
        self.t += 1
        over = self.t == self.rules["length"]
        observations = self._observations([0, 1] if over else [0])
        return observations, {0: reward, 1: reward}, {"__all__": over}, {}, {0: self.info}

    def _observations(self, agents):
        return {agent: np.zeros(2, np.float32) for agent in agents}


def played(runner_class, calls, **env_config):
    return play(case(calls=calls, env=Patience, env_config=env_config, mapping="name", num_envs=1), runner_class)


@pytest.mark.parametrize("lengths", [[206, 14], *further([[220]])], ids=str)
@pytest.mark.parametrize(
    "rewards",
    [
        [1],
        [2, np.int64(-1)],
        [*[1] * 210, 0.5],
        [2**52 + 1, -(2**50)],
        [np.uint8(0), np.uint8(200)],
        [np.uint8(200), np.uint8(0), np.uint8(200)],
        [np.bool_(False), np.bool_(True)],
        [np.float64(0.1), np.float32(0.2)],
        [np.float32(0.2), np.float64(0.1), np.float16(0.3)],
    ],
    ids=lambda rewards: f"{len(rewards)} with {rewards[-1]!r}",
)
def test_rewards_of_an_agent_that_waits_long_are_added_up(rewards, lengths):
    calls = [*(Sample(num_timesteps=n) for n in lengths), METRICS]
    want, got = (played(runner, calls, rewards=rewards, length=220) for runner in (RLlibEnvRunner, MultiAgentEnvRunner))
    assert want.error is None
    assert got.is_accelerated
    assert not [*differences(want, got)]


def test_a_reward_beyond_floats_is_an_error_at_once():
    """RLlib takes it, and can't report it."""
    options = {"rewards": [1, BEYOND_FLOATS], "length": 4}
    theirs = played(RLlibEnvRunner, [Sample(num_timesteps=4)], **options)
    assert theirs.error is None
    (episode,) = theirs.episodes
    assert episode.agent_episodes[0].rewards.data.tolist() == [1, BEYOND_FLOATS] * 2
    with pytest.raises(OverflowError):
        raise played(RLlibEnvRunner, [Sample(num_timesteps=4), METRICS], **options).error
    ours = played(MultiAgentEnvRunner, [Sample(num_timesteps=4)], **options)
    assert isinstance(ours.error, OverflowError)
    assert ours.error.__notes__ == ["fastmarl: reward of env 0, agent 0, env step 2"]


def test_infos_that_cant_be_copied_are_the_envs_own():
    """As in RLlib, whose infos all are."""
    for runner_class, is_own in ((RLlibEnvRunner, True), (MultiAgentEnvRunner, False)):
        rules = {"rewards": [1.0], "length": 9}
        setup = case(env=Patience, env_config=rules, mapping="name", num_envs=1).setup
        runner = runner_class(config=make_config(setup), worker_index=1)
        (episode,) = runner.sample(num_timesteps=3)
        of_env = runner.env.envs[0].unwrapped.info
        for info in episode.agent_episodes[0].get_infos([1, 2, 3]):
            assert info["handle"] is HANDLE
            assert (info["seen"] is of_env["seen"]) == is_own
        runner.stop()


class Odd(Patience):
    """Returns odd steps of the kind "odd"."""

    def step(self, actions):
        obs, rewards, terminateds, truncateds, infos = super().step(actions)
        if self.rules["odd"] == "arrays":
            rewards = {agent: np.ones(1, np.float32) for agent in (0, 1, 2)}  # agent 2 is never observed
        if self.rules["odd"] == "no reward":
            del rewards[0]
        if self.rules["odd"] == "None":
            obs[1] = None
        step = obs, rewards, terminateds, truncateds, infos
        return step[:4] if self.rules["odd"] == "no infos" else step


@pytest.mark.parametrize(
    ("odd", "error", "own_error"),
    [
        ("arrays", "NoneType", "NoneType"),
        ("no reward", "MultiAgentEnvError", "MultiAgentEnvError"),
        ("None", "NoneType", "ObservationError"),
        ("no infos", "RuntimeError", "RuntimeError"),
    ],
)
def test_odd_steps(odd, error, own_error):
    rules = {"rewards": [1.0], "length": 9, "odd": odd}
    chosen = case(calls=[Sample(num_timesteps=9)], env=Odd, env_config=rules, mapping="name", num_envs=1)
    want, got = play(chosen, RLlibEnvRunner), play(chosen, MultiAgentEnvRunner)
    assert (type(want.error).__name__, type(got.error).__name__) == (error, own_error)
    if odd == "arrays":
        (theirs,), (ours,) = want.episodes, got.episodes
        for agent in (0, 1):
            got, expected = (each.agent_episodes[agent].get_rewards() for each in (ours, theirs))
            assert got.dtype == expected.dtype and np.array_equal(got, expected)

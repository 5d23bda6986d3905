"""Agents that come back to life within an episode: whose their rewards are, and views of such episodes."""

import gymnasium as gym
import numpy as np
import pytest
from support.batched import Batched

import fastmarl
from fastmarl.errors import FinishedAgentError
from fastmarl.testing import check_env

AGENTS = ["bird", "tree"]


class Phoenix(fastmarl.MultiAgentEnv):
    """The bird ends at step 2 and is seen again at step `back`; the tree always acts; 6 steps.

    Args:
        config: "back", and "bonus": rewards of the bird by step, in addition to 1.0 for each action.
    """

    def __init__(self, config=None):
        self.config = {"back": 4, "bonus": {}, **(config or {})}
        self.possible_agents = AGENTS
        self.observation_spaces = dict.fromkeys(AGENTS, gym.spaces.Box(0, 9, (1,), np.float32))
        self.action_spaces = dict.fromkeys(AGENTS, gym.spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {agent: np.zeros(1, np.float32) for agent in AGENTS}, {}

    def step(self, actions):
        self.t += 1
        seen = AGENTS if self.t <= 2 or self.t >= self.config["back"] else ["tree"]
        rewards = dict.fromkeys(actions, 1.0)
        if self.t in self.config["bonus"]:
            rewards["bird"] = rewards.get("bird", 0.0) + self.config["bonus"][self.t]
        ended = {"__all__": False, **({"bird": True} if self.t == 2 else {})}
        obs = {agent: np.full(1, self.t, np.float32) for agent in seen}
        return obs, rewards, ended, {"__all__": self.t == 6}, {}


def sampled(kind, env_config, num_timesteps=None, **options):
    """Return the returns of the bird's lives in an episode, and the sum of rewards that belong to none."""
    env = Phoenix
    if kind == "arrays":
        env = lambda config: Batched([Phoenix(config)], AGENTS)  # noqa: E731
    if kind == "processes":
        options |= {"gym_env_vectorize_mode": "async", "env_worker_start_method": "fork"}
    config = fastmarl.EnvRunnerConfig(env=env, env_config=env_config, respawn=True, seed=0, **options)
    lives = []
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        n = 0
        while n < 6:
            chunks = runner.sample(num_timesteps=num_timesteps or 6)
            for steps in (chunk.agent_episodes.get("bird") for chunk in chunks):
                if steps is not None:
                    lives += [0.0] * (steps.t_started == 0)
                    lives[-1] += steps.get_return()
            n += num_timesteps or 6
        return lives, runner.get_metrics()["unattributed_reward"]


KINDS = ["dicts", "arrays", "processes"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("late_rewards", ["error", "accumulate", "drop"])
@pytest.mark.parametrize("bonus", [0.0, 0.25])
def test_a_reward_with_the_first_observation_belongs_to_the_new_life(kind, late_rewards, bonus):
    for num_timesteps in (6, 1):
        lives, lost = sampled(kind, {"bonus": {4: bonus}}, num_timesteps, late_rewards=late_rewards)
        assert (lives, lost) == ([2.0, 2.0 + bonus], 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_between_lives_rewards_are_late_ones(kind):
    bonus = {3: 0.5, 4: 0.25}
    assert sampled(kind, {"bonus": bonus}, late_rewards="accumulate") == ([2.5, 2.25], 0.0)
    assert sampled(kind, {"bonus": bonus}, late_rewards="drop") == ([2.0, 2.25], 0.5)
    with pytest.raises(FinishedAgentError, match=r"env step 3: sent the reward 0\.5"):
        sampled(kind, {"bonus": bonus})


@pytest.mark.parametrize("kind", KINDS)
def test_a_life_that_does_not_begin_gets_no_reward(kind):
    last = {"back": 6, "bonus": {6: 0.25}}  # observed in the last step alone
    assert sampled(kind, last) == ([2.0], 0.25)
    assert sampled(kind, last, late_rewards="drop") == ([2.0], 0.25)
    assert sampled(kind, last, late_rewards="accumulate") == ([2.25], 0.0)


@pytest.mark.parametrize("kind", ["dicts", "arrays"])
def test_checks_of_envs_know_this(kind):
    env = Phoenix({"bonus": {4: 0.25}})
    report = check_env(Batched([env], AGENTS) if kind == "arrays" else env, respawn=True)
    assert not [problem for problem in report.problems if "after" in str(problem)]


def test_episodes_are_replayed_in_chunks(tmp_path):
    options = {"env": Phoenix, "env_config": {"bonus": {4: 0.25}}, "respawn": True, "seed": 0}
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**options, record_actions=tmp_path)) as runner:
        chunks = runner.sample(num_episodes=1)
    replayed = fastmarl.replay(tmp_path, 0)
    assert [chunk.get_return() for chunk in replayed] == [chunk.get_return() for chunk in chunks] == [6.0, 4.25]
    assert [(chunk.env_t_started, chunk.env_t) for chunk in replayed] == [(0, 4), (4, 6)]
    for one, other in zip(replayed, chunks, strict=True):
        for agent, steps in other.agent_episodes.items():
            np.testing.assert_array_equal(one.agent_episodes[agent].get_observations(), steps.get_observations())

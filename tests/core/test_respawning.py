"""Agents that come back to life within an episode: whose their rewards are, and views of such episodes."""

import gymnasium as gym
import numpy as np
import pytest
from support.batched import Batched
from support.scripted import Scripted, Step, scripted

import fastmarl
from fastmarl.errors import FinishedAgentError
from fastmarl.testing import check_env

AGENTS, BOX = ["bird", "tree"], gym.spaces.Box(0, 9, (1,), np.float32)


def phoenix(at_3=None, at_4=None):
    """The bird ends at step 2 and is back at step 4; both get 1 for each action; further rewards at 3 and 4."""
    return [
        AGENTS, Step(AGENTS, 1), Step(AGENTS, 1, terminated=["bird"]),
        Step(["tree"], {"tree": 1.0, **(at_3 or {})}), Step(AGENTS, {"tree": 1.0, **(at_4 or {})}),
        Step(AGENTS, 1), Step(AGENTS, 1, truncated=True),
    ]  # fmt: skip


# The bird is back in the last step alone, with a reward.
LAST = [
    AGENTS, Step(AGENTS, 1), Step(AGENTS, 1, terminated=["bird"]), *[Step(["tree"], 1)] * 3,
    Step(AGENTS, {"tree": 1.0, "bird": 0.25}, truncated=True),
]  # fmt: skip


def sampled(kind, script, num_timesteps=None, **options):
    """Return the returns of the bird's lives in an episode, and the sum of rewards that belong to none."""
    env = scripted(script, space=BOX)
    if kind == "arrays":
        env = lambda config: Batched([Scripted(script, space=BOX)], AGENTS)  # noqa: E731
    if kind == "processes":
        options |= {"gym_env_vectorize_mode": "async", "env_worker_start_method": "fork"}
    config = fastmarl.EnvRunnerConfig(env=env, respawn=True, seed=0, **options)
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
        lives, lost = sampled(kind, phoenix(at_4={"bird": bonus}), num_timesteps, late_rewards=late_rewards)
        assert (lives, lost) == ([2.0, 2.0 + bonus], 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_between_lives_rewards_are_late_ones(kind):
    script = phoenix({"bird": 0.5}, {"bird": 0.25})
    assert sampled(kind, script, late_rewards="accumulate") == ([2.5, 2.25], 0.0)
    assert sampled(kind, script, late_rewards="drop") == ([2.0, 2.25], 0.5)
    with pytest.raises(FinishedAgentError, match=r"env step 3: sent the reward 0\.5"):
        sampled(kind, script)


@pytest.mark.parametrize("kind", KINDS)
def test_a_life_that_does_not_begin_gets_no_reward(kind):
    assert sampled(kind, LAST) == ([2.0], 0.25)
    assert sampled(kind, LAST, late_rewards="drop") == ([2.0], 0.25)
    assert sampled(kind, LAST, late_rewards="accumulate") == ([2.25], 0.0)


@pytest.mark.parametrize("kind", ["dicts", "arrays"])
def test_checks_of_envs_know_this(kind):
    env = Scripted(phoenix(at_4={"bird": 0.25}), space=BOX)
    report = check_env(Batched([env], AGENTS) if kind == "arrays" else env, respawn=True)
    assert not [problem for problem in report.problems if "after" in str(problem)]


def test_episodes_are_replayed_in_chunks(tmp_path):
    options = {"env": scripted(phoenix(at_4={"bird": 0.25}), space=BOX), "respawn": True, "seed": 0}
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**options, record_actions=tmp_path)) as runner:
        chunks = runner.sample(num_episodes=1)
    replayed = fastmarl.replay(tmp_path, 0, env=options["env"])
    assert [chunk.get_return() for chunk in replayed] == [chunk.get_return() for chunk in chunks] == [6.0, 4.25]
    assert [(chunk.env_t_started, chunk.env_t) for chunk in replayed] == [(0, 4), (4, 6)]
    for one, other in zip(replayed, chunks, strict=True):
        for agent, steps in other.agent_episodes.items():
            np.testing.assert_array_equal(one.agent_episodes[agent].get_observations(), steps.get_observations())

"""Counters and results of calls in which envs fail: a call counts exactly the steps that it returns."""

from collections import Counter

import numpy as np
import pytest
from support.process_runners import make_runner
from support.scripted import Scripted, Step, scripted
from support.trouble import Trouble

from fastmarl.errors import MultiAgentEnvError

MODES = [{"mode": "sync"}, {"mode": "sync", "worker_num_splits": 2}, {"mode": "async", "num_workers": 2}]


class Fragile(Trouble):
    """Raises in every 30th of its steps or so; agent b is there at every third one only."""

    def __init__(self, config):
        super().__init__(config)
        self.rng = np.random.default_rng(config.vector_index)

    def step(self, actions):
        if self.rng.random() < 1 / 30:
            raise KeyError("lost")
        _, rewards, *rest = super().step(actions)
        return self._obs(), rewards, *rest

    def _obs(self):
        seen = super()._obs()
        return seen if self.t % 3 == 0 else {"a": seen["a"]}


@pytest.mark.slow
@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("failed_episodes", ["truncate", "discard"])
@pytest.mark.parametrize("count_steps_by", ["env_steps", "agent_steps"])
def test_counted_steps_are_returned(options, failed_episodes, count_steps_by):
    runner = make_runner(
        Fragile,
        num_envs=4,
        env_config={"length": 40},
        env_worker_start_method="fork",
        restart_failed_sub_environments=True,
        failed_episodes=failed_episodes,
        count_steps_by=count_steps_by,
        **options,
    )
    calls = [runner.sample(num_timesteps=n) for n in (1, 200, 7, 350)]
    report = runner.get_metrics()
    runner.stop()
    assert report["num_env_failures"] > 5
    for n, chunks in zip((1, 200, 7, 350), calls, strict=True):
        seen = sum(map(len, chunks))
        if count_steps_by == "env_steps":
            assert n <= seen < n + 4
        else:
            assert n <= sum(len(part) for chunk in chunks for part in chunk.agent_episodes.values()) + 4 < n + 20
    chunks = [chunk for call in calls for chunk in call]
    assert report["num_env_steps_sampled"] == report["num_env_steps_sampled_lifetime"] == sum(map(len, chunks))
    actions = Counter()
    for chunk in chunks:
        actions.update({agent: len(part) for agent, part in chunk.agent_episodes.items()})
    # Agent b may have acted, and wait for its next observation: in an episode that goes on, or was discarded later.
    waiting = report["num_agent_steps_sampled"]["b"] - actions["b"]
    assert 0 <= waiting <= (4 if failed_episodes == "truncate" else 4 * len(calls))
    assert report["num_agent_steps_sampled"]["a"] == actions["a"] == sum(map(len, chunks))
    assert report["num_module_steps_sampled"] == {"default_policy": actions.total() + waiting}


@pytest.mark.parametrize("options", MODES)
def test_a_reward_before_an_observation_that_the_failure_leaves_without_a_step(options):
    """b receives 5 at the first step and is first observed at the second; the third fails."""

    late = ["a", Step("a", {"b": 5.0}), Step("ab", {}), KeyError("lost")]
    runner = make_runner(
        scripted(late),
        num_envs=1,
        env_worker_start_method="fork",
        restart_failed_sub_environments=True,
        **{**options, "worker_num_splits": 1},
    )
    runner.sample(num_episodes=3)
    report = runner.get_metrics()
    runner.stop()
    assert report["unattributed_reward"] == 15


def test_actions_of_a_call_that_fails_are_not_counted_where_no_step_came():
    steps = ["ab", "ab", "ab", "ab"]
    breaks = [*steps, KeyError("lost")]
    runner = make_runner(lambda config: Scripted(breaks if config.vector_index == 1 else steps), mode="sync")
    with pytest.raises(KeyError):
        runner.sample(num_timesteps=60)
    report = runner.get_metrics()
    runner.stop()
    assert report["num_env_steps_sampled"] == 10  # the first env has made its fourth step
    assert report["num_agent_steps_sampled"] == {"a": 10, "b": 10}


@pytest.mark.slow
def test_episodes_that_are_always_discarded_are_no_endless_loop():
    doomed = scripted(["ab", "ab", "ab", "ab", KeyError("lost")])
    runner = make_runner(
        doomed, mode="sync", num_envs=2, restart_failed_sub_environments=True, failed_episodes="discard"
    )
    with pytest.raises(MultiAgentEnvError, match="discarded"):
        runner.sample(num_timesteps=20)
    with pytest.raises(MultiAgentEnvError, match="discarded"):
        runner.sample(num_episodes=1)
    assert len(runner.sample(num_timesteps=4)) == 2
    runner.stop()


def test_an_episode_with_chunks_on_record_is_discarded_from_its_last_chunk_on():
    """A respawn has ended a chunk in the call in which the env fails: that chunk is returned, and counted."""

    respawning = ["ab", Step("ab", 1), Step("ab", 1, terminated="b"), *[Step("ab", 1)] * 4, KeyError("lost")]
    runner = make_runner(
        scripted(respawning), mode="sync", num_envs=1, respawn=True, restart_failed_sub_environments=True,
        failed_episodes="discard",
    )  # fmt: skip
    chunks = runner.sample(num_timesteps=9)
    report = runner.get_metrics()
    runner.stop()
    assert [(chunk.env_t_started, chunk.env_t) for chunk in chunks] == [(0, 3), (0, 3), (3, 6)]
    assert (report["num_env_steps_sampled"], report["num_env_steps_discarded"]) == (9, 4)
    assert report["num_agent_steps_sampled"] == {"a": 9, "b": 7}


@pytest.mark.parametrize("options", MODES)
def test_metrics_of_truncated_episodes_are_those_of_their_parts(options):
    runner = make_runner(
        Trouble,
        num_envs=2,
        env_config={"length": 7, "trouble": {(1, 3): "raise"}},
        env_worker_start_method="fork",
        restart_failed_sub_environments=True,
        max_restarts=100,
        **options,
    )
    chunks = runner.sample(num_episodes=8)
    report = runner.get_metrics()
    runner.stop()
    lengths = [len(chunk) for chunk in chunks]
    assert {2, 7} == set(lengths)
    for agent in ("a", "b"):
        parts = [chunk.agent_episodes[agent] for chunk in chunks]
        assert [*map(len, parts)] == lengths
        assert report["agent_episode_returns_mean"][agent] == np.mean([part.get_return() for part in parts])
        assert report["agent_steps"][agent] == np.mean(lengths)
    assert report["episode_return_mean"] == np.mean([chunk.get_return() for chunk in chunks])


def test_failures_since_the_runner_was_made_are_in_every_report():
    trouble = {"trouble": {(0, 3): "raise"}}
    runner = make_runner(Trouble, num_envs=1, mode="sync", env_config=trouble, restart_failed_sub_environments=True)
    runner.sample(num_timesteps=4)
    reports = [runner.get_metrics() for _ in range(2)]
    runner.stop()
    assert [(each["num_env_failures"], each["num_env_step_failures"]) for each in reports] == [(1, 1), (0, 1)]


def test_a_successful_step_ends_a_row_of_restarts():
    """Each env fails in its third step, so after two that succeed."""
    runner = make_runner(
        Trouble,
        num_envs=1,
        mode="sync",
        env_config={"trouble": {(0, 3): "raise"}},
        restart_failed_sub_environments=True,
        max_restarts=1,
    )
    runner.sample(num_timesteps=20)
    assert runner.get_metrics()["num_env_restarts"] > 3
    runner.stop()

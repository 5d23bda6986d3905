"""time_limited(): the same env, whose episodes are cut; everything else passes through."""

import gymnasium as gym
import numpy as np
import pytest
from support.batched import Batched
from support.differences import assert_same
from support.levels import Levels, make_batch
from support.process_runners import contents, make_runner

import fastmarl
from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.envs.time_limit import TimeLimitedBatch, time_limited
from fastmarl.errors import ConfigError, EnvCheckError
from fastmarl.replays import Recording
from fastmarl.testing.check import check_env


class Endless(Levels):
    def step(self, actions):
        obs, rewards, _, *rest = super().step(actions)
        return obs, rewards, {"__all__": False}, *rest


def endless_batch(config):
    return Batched([Endless(config) for _ in range(config.num_envs)], ["a", "b"])


@pytest.mark.parametrize(
    ("env", "options"),
    [(Endless, {"mode": "sync"}), (Endless, {"env_worker_start_method": "fork"}), (endless_batch, {"mode": "sync"}),
     (endless_batch, {"mode": "sync", "worker_num_splits": 2})],
)  # fmt: skip
def test_episodes_that_would_not_end_are_truncated(env, options):
    runner = make_runner(time_limited(env, 7), **options)
    episodes = runner.evaluate(5)
    assert [(len(each), each.is_terminated, each.is_truncated) for each in episodes] == [(7, False, True)] * 5
    runner.stop()


def test_episodes_that_end_before_are_the_same():
    plain, limited = (make_runner(env, mode="sync") for env in (Levels, time_limited(Levels, 12)))
    chunks = [[contents(chunk) for chunk in runner.sample(num_timesteps=90)] for runner in (plain, limited)]
    assert_same(*chunks)
    assert "Levels, at most 12 steps" in repr(limited)


def test_the_last_step_may_be_the_limit():
    episodes = make_runner(time_limited(Levels, 4), mode="sync").evaluate(30)
    lengths = [len(each) for each in episodes]
    assert set(lengths) == {2, 3, 4}
    assert all(each.is_terminated != each.is_truncated for each in episodes)
    assert all(each.is_terminated for each in episodes if len(each) < 4)


def test_names_are_looked_up_at_once_as_workers_know_none():
    fastmarl.register_env("endless", Endless)
    limited = time_limited("endless", 3)
    fastmarl.register_env("endless", lambda config: pytest.fail("looked up later"))
    with make_runner(limited, mode="sync") as runner:
        assert [len(each) for each in runner.evaluate(4)] == [3] * 4


@pytest.mark.needs("pettingzoo")
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_adapted_envs_are_limited():
    assert check_env(time_limited("pettingzoo.classic.tictactoe_v3", 6)).ok
    with make_runner(time_limited("pettingzoo.classic.tictactoe_v3", 6), mode="sync") as runner:
        assert max(len(each) for each in runner.evaluate(20, explore=True)) == 6


def test_evaluations_and_tournaments_end():
    spec = fastmarl.RLModuleSpec(model_config={"fcnet_hiddens": [4]})
    assert fastmarl.evaluate(spec, time_limited(Endless, 5), episodes=3).lengths.tolist() == [5] * 3
    result = fastmarl.tournament({"a": spec, "b": spec}, time_limited(Endless, 5), episodes=4)
    assert result.lengths.tolist() == [5] * 4


@pytest.mark.parametrize("max_steps", [0, -1, 1.5, True, None])
def test_impossible_limits(max_steps):
    with pytest.raises(ConfigError, match="max_steps must be a positive integer"):
        time_limited(Levels, max_steps)


def test_a_batch_is_limited_like_its_envs():
    """Some episodes end at the limit, some before it, and dropped ones begin again."""
    singles, batch = (make_runner(time_limited(env, 6), mode="sync") for env in (Levels, make_batch))
    for _ in range(2):
        assert_same(*([contents(each) for each in runner.sample(num_timesteps=50)] for runner in (singles, batch)))
        assert_same(*([contents(each) for each in runner.evaluate(7)] for runner in (singles, batch)))


@pytest.mark.parametrize("env", ["fastmarl.gridworld", "fastmarl.lbforaging"])
def test_the_count_of_steps_belongs_to_the_state_of_a_running_episode(env, tmp_path):
    limited = time_limited(env, 10)
    with make_runner(limited, mode="sync") as runner:
        runner.sample(num_timesteps=3 * 4)
        runner.save_to_path(tmp_path)
        expected = [contents(each) for each in runner.sample(num_timesteps=60)]
    with make_runner(limited, mode="sync") as runner:
        runner.restore_from_path(tmp_path)
        assert_same([contents(each) for each in runner.sample(num_timesteps=60)], expected)


def test_a_batch_does_not_count_on_in_a_state_that_was_set():
    class Still(ArrayEnv):
        def step(self, actions, out):
            pass

        def get_state(self):
            return {}

        def set_state(self, state):
            pass

    spaces = {"g": gym.spaces.Box(-1, 1)}, {"g": gym.spaces.Discrete(2)}
    limited = TimeLimitedBatch(Still(2, {"g": ["a"]}, *spaces), 9)
    state = limited.get_state()
    for _ in range(2):
        limited.set_state(state)
        limited.step({}, StepArrays({}, *np.zeros((2, 2), np.bool_)))
        assert (state["steps"].tolist(), limited.get_state()["steps"].tolist()) == ([0, 0], [1, 1])


def test_global_states_are_recorded():
    with make_runner(time_limited("fastmarl.simple_spread", 4), mode="sync", record_env_state=True) as runner:
        assert runner.evaluate(1)[0].get_env_states().shape == (5, 54)


@pytest.mark.parametrize("env", ["fastmarl.gridworld", "levels"])
def test_recorded_episodes_are_replayed_with_their_limit(env, tmp_path):
    fastmarl.register_env("levels", Levels)
    with make_runner(time_limited(env, 4), mode="sync", record_actions=tmp_path) as runner:
        episodes = runner.sample(num_episodes=6)
    assert {len(each) for each in episodes if each.is_truncated} == {4}
    for recorded in Recording(tmp_path):
        fastmarl.replay(tmp_path, recorded.id_)


def test_unknown_names_are_refused():
    with pytest.raises(EnvCheckError, match="no_such_env"):
        make_runner(time_limited("no_such_env", 3), mode="sync")

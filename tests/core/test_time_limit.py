"""time_limited(): the same env, whose episodes are cut; everything else passes through."""

import pytest
from support.levels import Levels, make_batch
from support.process_runners import contents, make_runner

import fastmarl
from fastmarl.core.envs.time_limit import time_limited
from fastmarl.core.envs.values import same
from fastmarl.errors import ConfigError, EnvCheckError
from fastmarl.testing.check import check_env


class Endless(Levels):
    def step(self, actions):
        obs, rewards, _, *rest = super().step(actions)
        return obs, rewards, {"__all__": False}, *rest


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_episodes_that_would_not_end_are_truncated(mode):
    runner = make_runner(time_limited(Endless, 7), mode=mode)
    episodes = runner.evaluate(5)
    assert [(len(each), each.is_terminated, each.is_truncated) for each in episodes] == [(7, False, True)] * 5
    runner.stop()


def test_episodes_that_end_before_are_the_same():
    plain, limited = (make_runner(env, mode="sync") for env in (Levels, time_limited(Levels, 12)))
    chunks = [[contents(chunk) for chunk in runner.sample(num_timesteps=90)] for runner in (plain, limited)]
    assert same(*chunks)
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
    with pytest.raises(ConfigError, match="max_steps must be an integer of at least 1"):
        time_limited(Levels, max_steps)


def test_batches_and_unknown_names_are_refused():
    with pytest.raises(EnvCheckError, match="is a batch that steps in arrays"):
        make_runner(time_limited(make_batch, 3), mode="sync")
    with pytest.raises(EnvCheckError, match="no_such_env"):
        make_runner(time_limited("no_such_env", 3), mode="sync")

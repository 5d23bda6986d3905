"""evaluate(): how many episodes of which env, with which seeds; and training goes on as if it had not been."""

import numpy as np
import pytest
from support.batched import Batched
from support.differences import assert_same
from support.levels import KINDS, Levels, assert_can_be_made_again, runner_of
from support.own_lengths import KINDS as LENGTH_KINDS
from support.own_lengths import LENGTHS
from support.process_runners import contents, make_runner

from fastmarl.connectors import MeanStdFilter
from fastmarl.errors import ConfigError


@pytest.mark.parametrize("kind", LENGTH_KINDS)
def test_every_env_makes_its_share_however_long_its_episodes_are(kind):
    runner = make_runner(num_envs=4, env_worker_start_method="fork", **LENGTH_KINDS[kind])
    runner.sample(num_timesteps=30)
    for n in (0, 2, 4, 11):
        episodes = runner.evaluate(n)
        assert [len(episode) for episode in episodes] == [LENGTHS[k % 4] for k in range(n)]
        assert all(episode.is_done and episode.env_t_started == 0 for episode in episodes)
    assert sum(map(len, runner.sample(num_timesteps=30))) >= 30
    runner.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_are_those_of_the_episodes_in_order(kind):
    runner = runner_of(kind)
    seeds = [7, 7, 2**40, 0, 5, 11, 23, 1]
    episodes = runner.evaluate(8, seeds=seeds)
    assert [episode.reset_seed for episode in episodes] == seeds
    for episode in episodes:
        assert_can_be_made_again(episode)
    own = [episode.reset_seed for episode in runner.evaluate(8)]
    assert len(set(own)) == 8
    assert [episode.reset_seed for episode in runner.evaluate(8)] == own
    assert not set(own) & {chunk.reset_seed for chunk in runner.sample(num_timesteps=60)}
    runner.stop()


@pytest.mark.parametrize("kind", ["sync", "workers", "batch"])
@pytest.mark.parametrize("explore", [True, False])
def test_training_goes_on_as_if_it_had_not_been(kind, explore):
    def trained(evaluates):
        heard = []
        runner = runner_of(
            kind,
            batch_mode="complete_episodes",
            env_to_module_connector=MeanStdFilter(),
            callbacks_on_episode_end=lambda episode, **kwargs: heard.append(episode.id_),
            callbacks_on_sample_end=lambda samples, **kwargs: heard.append(len(samples)),
        )
        chunks = []
        for _ in range(4):
            chunks += runner.sample()
            if evaluates:
                before = runner.get_state()
                assert len(runner.evaluate(5, explore=explore)) == 5
                assert_same(runner.get_state(), before)
        report = runner.get_metrics()
        runner.stop()
        counts = {key: value for key, value in report.items() if key.startswith(("num_", "episode_r", "agent_"))}
        return [contents(chunk) for chunk in chunks], counts, len(heard)

    assert_same(trained(True), trained(False))


def test_filters_are_used_and_learn_nothing():
    runner = runner_of("sync", env_to_module_connector=MeanStdFilter())
    runner.sample(num_timesteps=200)
    (connector,) = runner.env_to_module["default_policy"].connectors
    stats = connector.stats[0].get_state()
    (episode,) = runner.evaluate(1, seeds=[3])
    raw = Levels({}).reset(seed=3)[0]["a"]
    want = (raw - stats["mean"]) / np.sqrt(stats["m2"] / stats["count"])
    np.testing.assert_allclose(episode.get_observations(0)["a"], want, rtol=1e-4, atol=1e-5)
    (connector,) = runner.env_to_module["default_policy"].connectors
    assert connector.update_stats
    assert connector.stats[0].get_state()["count"] == stats["count"]


def test_an_error_leaves_a_runner_that_goes_on(tmp_path):
    class Failing(Levels):
        def step(self, actions):
            if self.t == 1 and (tmp_path / "fail").exists():
                raise KeyError("lost")
            return super().step(actions)

    runner = runner_of("sync", env=Failing, env_to_module_connector=MeanStdFilter())
    runner.sample(num_timesteps=30)
    before = runner.get_state(not_components="running_episodes")  # they are dropped
    (tmp_path / "fail").touch()
    with pytest.raises(KeyError):
        runner.evaluate(4)
    (tmp_path / "fail").unlink()
    assert_same(runner.get_state(not_components="running_episodes"), before)
    assert len(runner.evaluate(4)) == 4
    assert sum(map(len, runner.sample(num_timesteps=30))) >= 30


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_finished_before_an_error_come_with_the_next_call(kind, tmp_path):
    class Failing(Levels):
        def reset(self, *, seed=None, options=None):
            if seed == 9 and (tmp_path / "fail").exists():
                raise KeyError("lost")
            return super().reset(seed=seed)

    def make(config):
        if kind.startswith("batch"):
            return Batched([Failing(config) for _ in range(config.num_envs)], ["a", "b"])
        return Failing(config)

    runner = runner_of(kind, env=make)
    (tmp_path / "fail").touch()
    for _ in range(2):  # two calls that fail
        with pytest.raises(KeyError):
            runner.evaluate(8, seeds=[1, 2, 3, 4, 5, 6, 7, 9])
    (tmp_path / "fail").unlink()
    assert not {chunk.reset_seed for chunk in runner.sample(num_timesteps=30)} & set(range(10))
    seeds = [episode.reset_seed for episode in runner.evaluate(2, seeds=[11, 12])]
    rescued = len(seeds) // 2 - 1
    assert rescued and seeds == [*seeds[:rescued], *seeds[:rescued], 11, 12]
    assert {2, 5} <= set(seeds) and seeds[:rescued] == sorted(seeds[:rescued]) and 9 not in seeds
    assert [episode.reset_seed for episode in runner.evaluate(1, seeds=[7])] == [7]
    runner.stop()


@pytest.mark.parametrize("arguments", [(-1,), (1.5,), (True,), (2, [1]), (1, [-1]), (1, ["x"]), (1, [2**63])])
def test_impossible_arguments(arguments):
    runner = runner_of("sync")
    with pytest.raises(ConfigError, match=r"num_episodes|seeds"):
        runner.evaluate(arguments[0], seeds=arguments[1] if len(arguments) > 1 else None)


def test_batches_that_share_a_generator_take_no_seeds():
    runner = make_runner(LENGTH_KINDS["batch"]["env"], num_envs=4, mode="sync")
    runner.env.envs[0].seeds_each_episode = False
    with pytest.raises(ConfigError, match="seeds_each_episode"):
        runner.evaluate(1, seeds=[1])
    assert len(runner.evaluate(1)) == 1

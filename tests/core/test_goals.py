"""Whole episodes: those that begin first, not those that end first."""

from collections import Counter

import gymnasium as gym
import pytest
from support.own_lengths import KINDS, LENGTHS, OwnLength
from support.process_runners import make_runner


@pytest.fixture(params=KINDS)
def runner(request):
    made = make_runner(
        num_envs=4, batch_mode="complete_episodes", env_worker_start_method="fork", **KINDS[request.param]
    )
    yield made
    made.stop()


def lengths(episodes):
    """By env, in the order of their resets."""
    whole = {episode.id_: episode for episode in episodes}
    assert len(whole) == len(episodes)
    assert all(episode.is_done and episode.env_t_started == 0 for episode in episodes)
    firsts = sorted((tuple(episode.get_observations(0)["a"][:2]), len(episode)) for episode in episodes)
    return [(int(env_index), n) for (env_index, _), n in firsts]


@pytest.mark.slow
def test_every_env_delivers_one_episode(runner):
    for _ in range(20):
        assert lengths(runner.sample()) == list(enumerate(LENGTHS))
    report = runner.get_metrics()
    assert report["num_env_steps_sampled"] == 20 * sum(LENGTHS)
    assert report["num_agent_steps_sampled"] == dict.fromkeys("ab", 20 * sum(LENGTHS))
    assert report["episode_len_mean"] == sum(LENGTHS) / 4


def test_the_episodes_are_those_that_begin_first(runner):
    if runner.config.env_batch_size:
        by_length = Counter(n for _, n in lengths(runner.sample(num_episodes=40)))
        assert by_length[50] >= 1
        assert by_length.total() == 40
        return
    second = 1 if runner.config.worker_num_splits == 1 else 2  # whose first episode ends together with that of env 0
    want = [*enumerate(LENGTHS), (0, 5), (second, 5)]
    assert lengths(runner.sample(num_episodes=6)) == sorted(want)
    assert lengths(runner.sample(num_episodes=2)) == [(0, 5), (1, 5)]
    assert lengths(runner.sample(num_episodes=4)) == list(enumerate(LENGTHS))
    assert runner.sample(num_episodes=0) == []
    assert runner.get_metrics()["num_env_steps_sampled"] == 75 + 10 + 65


def test_calls_of_all_kinds_in_turn(runner):
    n_steps = 0
    for _ in range(3):
        chunks = runner.sample(num_timesteps=30)
        n_steps += sum(map(len, chunks))
        assert 30 <= sum(map(len, chunks)) < 34
        assert lengths(runner.sample()) == list(enumerate(LENGTHS))
        assert len(runner.sample(num_episodes=3)) == 3
    report = runner.get_metrics()
    assert report["num_env_steps_sampled"] == n_steps + 3 * (65 + 15)


def test_an_env_that_has_delivered_is_not_stepped_on():
    runner = make_runner(OwnLength, num_envs=4, mode="sync", batch_mode="complete_episodes")
    for _ in range(3):
        runner.sample()
    assert [env.n_steps for env in runner.env.envs] == [3 * n for n in LENGTHS]
    assert [env.n_resets for env in runner.env.envs] == [3] * 4
    runner.stop()


@pytest.mark.parametrize("kind", ["sync", "workers", "batches"])
def test_callbacks_hear_of_those_that_take_part_alone(kind):
    heard = Counter()
    runner = make_runner(
        num_envs=4,
        env_worker_start_method="fork",
        callbacks_on_episode_step=lambda env_index, **kwargs: heard.update([("step", env_index)]),
        callbacks_on_episode_end=lambda env_index, **kwargs: heard.update([("end", env_index)]),
        **KINDS[kind],
    )
    runner.sample(num_episodes=5)
    runner.stop()
    steps = {("step", 0): 10, ("step", 1): 5, ("step", 2): 5, ("step", 3): 50}
    assert heard == steps | {("end", 0): 2, ("end", 1): 1, ("end", 2): 1, ("end", 3): 1}


def test_vector_envs_that_begin_episodes_by_themselves():
    """They can't begin a single episode but where one has ended: what rests goes on unseen."""

    def make(config):
        return gym.make_vec("CartPole-v1", num_envs=config.num_envs, vectorization_mode="sync")

    runner = make_runner(make, num_envs=4, mode="sync", batch_mode="complete_episodes")
    for _ in range(5):
        episodes = runner.sample()
        assert len(episodes) == 4
        for episode in episodes:
            assert episode.is_done
            assert episode.env_t_started == 0
    assert len(runner.sample(num_episodes=11)) == 11
    runner.stop()


@pytest.mark.parametrize("kind", ["sync", "workers"])
def test_an_env_that_fails_delivers_another_episode_for_one_that_is_discarded(kind, tmp_path):
    class Failing(OwnLength):
        def step(self, actions):
            mark = tmp_path / f"{self.index}-{self.t}"
            if (self.index, self.t) in ((1, 3), (3, 40)) and not mark.exists():
                mark.touch()
                raise KeyError("lost")
            return super().step(actions)

    runner = make_runner(
        num_envs=4,
        batch_mode="complete_episodes",
        restart_failed_sub_environments=True,
        failed_episodes="discard",
        env_worker_start_method="fork",
        **{**KINDS[kind], "env": Failing},
    )
    assert lengths(runner.sample()) == list(enumerate(LENGTHS))
    report = runner.get_metrics()
    runner.stop()
    assert (report["num_env_steps_sampled"], report["num_env_steps_discarded"]) == (65, 4 + 41)

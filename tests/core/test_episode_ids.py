"""Ids of episodes are unique, and differ in their first digits, like those of RLlib."""

import re

import pytest
from support.gridworld import PlainGridWorld

import fastmarl
from fastmarl.core.native._records import episode_id
from fastmarl.core.store.lanes import EpisodeIds

RUN = "0123456789abcdef0123"


def test_ids_are_32_digits_and_unique():
    makers = [EpisodeIds() for _ in range(20)]
    ids = [maker.new() for _ in range(500) for maker in makers]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{32}", id_) for id_ in ids)


@pytest.mark.parametrize("first", [0, 1, 2**24 - 500, 2**47, 2**48 - 500])
def test_adjacent_numbers_differ_from_the_first_digits_on(first):
    """The numbers are given, so that no chance is in it; of random digits, few would be the same, too."""
    ids = [episode_id(RUN, number) for number in range(first, first + 1000)]
    assert len({id_[:12] for id_ in ids}) == 1000
    assert len({id_[:8] for id_ in ids}) >= 998
    assert len({id_[:6] for id_ in ids}) >= 995
    assert len({id_[0] for id_ in ids}) == 16


def test_numbers_that_differ_in_any_of_48_bits_have_different_ids():
    numbers = [0, *(1 << bit for bit in range(48)), *((1 << bit) - 1 for bit in range(2, 49))]
    assert len({episode_id(RUN, number) for number in numbers}) == len(numbers)


def test_reserved_ids_are_not_given_out_again():
    ids = EpisodeIds()
    first = ids.reserve(3)
    assert ids.new() == episode_id(ids.run_id, first + 3)


def test_ids_of_a_runners_episodes_begin_differently():
    config = fastmarl.EnvRunnerConfig(
        env=PlainGridWorld, env_config={"max_steps": 5}, num_envs_per_env_runner=4, seed=0
    )
    episodes = fastmarl.MultiAgentEnvRunner(config).sample(num_episodes=40)
    assert len({episode.id_[:6] for episode in episodes}) >= 39

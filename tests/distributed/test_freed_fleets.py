"""A sampler of several runners is freed at once when its name is bound to another one, with its processes."""

import multiprocessing

import pytest
from support.freed import left_behind, uncollected, what_stays

import fastmarl
from fastmarl.distributed import BackgroundSampler, EnvRunnerGroup

CONFIG = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", rollout_fragment_length=25, seed=0)


def test_a_group_in_this_process_is_freed_by_reference_counts_alone():
    assert not left_behind(lambda: EnvRunnerGroup(CONFIG, num_env_runners=0).sample())


@pytest.mark.slow
def test_processes_of_a_freed_background_sampler_end():
    with uncollected():
        sampler = BackgroundSampler(CONFIG, start_method="fork")
        next(iter(sampler))
        assert multiprocessing.active_children()
        sampler = None
        assert not what_stays(multiprocessing.active_children)

"""A sampler of several runners is freed at once when its name is bound to another one, with its processes."""

import multiprocessing

import pytest
from support.freed import uncollected, what_stays

import fastmarl
from fastmarl.distributed import BackgroundSampler

SPREAD = "fastmarl.simple_spread"


@pytest.mark.slow
def test_processes_of_a_freed_background_sampler_end():
    with uncollected():
        sampler = BackgroundSampler(fastmarl.EnvRunnerConfig(env=SPREAD, seed=0))
        next(iter(sampler))
        assert multiprocessing.active_children()
        sampler = None
        assert not what_stays(multiprocessing.active_children)

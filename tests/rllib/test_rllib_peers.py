"""RLlib's entries in `python -m benchmarks.peers` do the work that they tell."""

import logging
from importlib import import_module

import pytest

from peer_samplers.work import AGENTS, TICKS, Setting


@pytest.fixture(autouse=True)
def logging_as_before():
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("module", ["rllib", "fastmarl_rllib", "rllib_old", "fastmarl_rllib_old"])
@pytest.mark.filterwarnings("ignore:.*Overriding environment")
def test_rllibs_samplers_make_as_many_steps_as_they_report(module):
    sampler = import_module(f"peer_samplers.{module}").build(Setting("free", 2, 0))
    try:
        assert [sampler.collect() for _ in range(2)] == [TICKS * 2 * AGENTS] * 2
    finally:
        sampler.close()

"""Files that version 0.1.0 wrote are read by this one: checkpoints, Parquet files and records of actions.

All come from simple_spread in two environments: `runner` from a runner with connectors that keep statistics, and with
options that later got other names; the others from a runner with an LSTM.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import fastmarl
from fastmarl.connectors import FrameStacking, MeanStdFilter
from fastmarl.offline import ParquetReader

SAVED = Path(__file__).parent / "support/saved_by_0_1_0"
RETURNS = json.loads((SAVED / "returns.json").read_text())  # of the next chunks, by version 0.1.0
SPREAD = "fastmarl.simple_spread"


def make_connectors(*args, **kwargs):
    return [MeanStdFilter(), FrameStacking(2)]


GIVEN = {  # folder -> options that a checkpoint can't hold
    "runner": {"env_to_module_connector": make_connectors},
    "recurrent": {"record_actions": None, "output": None},
}


@pytest.mark.parametrize("name", GIVEN)
def test_runners_go_on(name):
    with fastmarl.MultiAgentEnvRunner.from_checkpoint(SAVED / name, env=SPREAD, **GIVEN[name]) as runner:
        episodes = runner.sample(num_timesteps=20)
    assert [episode.get_return() for episode in episodes] == pytest.approx(RETURNS[name])


def test_options_keep_their_values():
    with fastmarl.MultiAgentEnvRunner.from_checkpoint(SAVED / "runner", env=SPREAD, **GIVEN["runner"]) as runner:
        config = runner.config
    assert (config.native_inference, config.late_rewards, config.keep_float64) == (False, "accumulate", True)


@pytest.mark.parametrize("name", GIVEN)
def test_policies_act(name):
    policy = fastmarl.Policy.from_checkpoint(SAVED / name)
    action, state = policy.act(np.zeros(18, np.float32), state={})
    assert action in range(5) and state


def test_parquet_files_have_all_steps():
    chunks = [chunk for some in ParquetReader(SAVED / "parquet").iter_episodes() for chunk in some]
    assert sum(map(len, chunks)) == 80


@pytest.mark.parametrize("number", [0, 1])
def test_records_are_replayed(number):
    assert len(fastmarl.replay(SAVED / "records", number)) == 25

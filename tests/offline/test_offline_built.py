"""Episodes that were built by hand, or written to, in Parquet files."""

import copy

import numpy as np
import pytest
from support.exactly import assert_same_episodes

import fastmarl
from fastmarl.episodes import MultiAgentEpisode
from fastmarl.offline import ParquetReader, ParquetWriter

pytestmark = pytest.mark.needs("pyarrow")


def built():
    episode = MultiAgentEpisode("e", agent_module_ids={"a": "p", "b": "p"})
    episode.add_env_reset(observations={"a": np.zeros(2), "b": np.ones(2)}, infos={"a": {"x": 1}})
    for t in range(3):
        episode.add_env_step({"a": np.full(2, t)}, {"a": t, **({} if t else {"b": 1})}, {"a": 0.5, "b": 0.25})
    return episode


def read(path):
    return [chunk for chunks in ParquetReader(path).iter_episodes() for chunk in chunks]


def test_built_episodes_come_back_as_they_were_written(tmp_path):
    episode = built()
    kept = copy.deepcopy(episode)
    kept.chunk.open_actions = None  # what is not answered yet is not in files
    with ParquetWriter(tmp_path) as writer:
        writer.write([episode])
        episode.set_rewards(new_data={"a": 9.0}, at_indices=0)
        episode.add_env_step({"a": np.zeros(2)}, {"a": 2}, {"a": 0.5})
    assert_same_episodes(read(tmp_path), [kept])


def test_later_writes_to_a_chunk_are_not_in_the_file(tmp_path):
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", seed=1)
    with fastmarl.MultiAgentEnvRunner(config) as runner, ParquetWriter(tmp_path) as writer:
        chunks = runner.sample(num_timesteps=30)
        kept = copy.deepcopy(chunks)
        arrays = [chunk.get_rewards()["agent_0"] for chunk in chunks]
        before = [array.copy() for array in arrays]
        writer.write(chunks)
        for chunk in chunks:
            chunk.set_rewards(new_data={"agent_0": 99.0}, at_indices=0)
        assert all(map(np.array_equal, arrays, before))
        assert [chunk.get_rewards(0)["agent_0"] for chunk in chunks] == [99.0] * len(chunks)
    assert_same_episodes(read(tmp_path), kept)

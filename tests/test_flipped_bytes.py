"""Flipped bytes in files that fastmarl has written: an error, or the data that were written; never other data."""

import os

import numpy as np
import pytest
from support.differences import assert_same
from support.random_cases import number_of_cases

import fastmarl
from fastmarl.checkpoint import load_state, save_state
from fastmarl.errors import BatchError, FastmarlError
from fastmarl.legacy import JsonReader, JsonWriter, SampleBatch
from fastmarl.offline import ParquetReader
from fastmarl.replays import Recording

FLIPS = number_of_cases(20)  # in files of each kind
FIRST_SEED = int(os.environ.get("FASTMARL_SEED", "0"))
SPREAD = "fastmarl.simple_spread"


def runner_of(**options):
    config = fastmarl.EnvRunnerConfig(env=SPREAD, num_envs_per_env_runner=3, seed=1, **options)
    return fastmarl.MultiAgentEnvRunner(config)


class Episodes:
    """Parquet files of two parts, with lookbacks, infos and custom data."""

    def __init__(self, compression="zstd"):
        self._compression = compression

    def write(self, folder):
        options = {"compression": self._compression, "next_obs": True}
        with runner_of(output=folder, output_config=options, output_max_rows_per_file=200) as runner:
            for _ in range(2):
                for chunk in runner.sample(num_timesteps=60):
                    chunk.custom_data["name"] = f"chunk {chunk.id_}"

    def read(self, folder):
        reader = ParquetReader(folder)
        return [
            reader.info,
            reader.num_rows(),
            [chunk.get_state() for some in reader.iter_episodes() for chunk in some],
            list(reader.iter_batches(module_id="default_policy", batch_size=1000, next_obs=True)),
        ]


class Record:
    def write(self, folder):
        with runner_of(record_actions=folder) as runner:
            for _ in range(3):
                runner.sample(num_timesteps=60)

    def read(self, folder):
        recording = Recording(folder)
        return [(read.actions, read.prints, read.modules) for read in map(recording.read, recording)]


class ListOfRecord(Record):
    def read(self, folder):
        recording = Recording(folder)
        return [(each.id_, each.meta, each.env_index, each.reset_seed, each.length, each.end) for each in recording]


class State:
    def write(self, folder):
        save_state(folder, {"weights": [np.arange(50.0), np.ones(3, np.int8)], "n": 2**70, "x": (0.1, None, "text")})

    def read(self, folder):
        return load_state(folder)


class Checkpoint:
    def write(self, folder):
        with runner_of(model_config={"fcnet_hiddens": [4]}) as runner:
            runner.sample(num_timesteps=30)
            runner.save_to_path(folder)

    def read(self, folder):
        policy = fastmarl.Policy.from_checkpoint(folder)
        return load_state(folder), policy.act(np.full(18, 0.5, np.float32))


class Batches:
    """Lines of JSON. Damaged ones are left out."""

    def write(self, folder):
        for packed in (["obs"], []):
            writer = JsonWriter(folder, compress_columns=packed)
            for i in range(4):
                columns = {"obs": np.full((3, 2), i, np.float32), "rewards": np.arange(3.0) / 7, "t": np.arange(3)}
                writer.write(SampleBatch({**columns, "infos": np.array([{"x": "text"}] * 3, object)}))
            writer.close()

    def read(self, folder):
        found = [
            {name: np.asarray(column).tolist() for name, column in batch.items()}
            for batch in JsonReader(folder).read_all_files()
        ]
        if len(found) < 8:
            raise BatchError("a line was left out")
        return found


KINDS = {
    "Parquet, zstd": (Episodes(), "*.parquet"),
    "Parquet, not compressed": (Episodes("none"), "*.parquet"),
    "descriptions of Parquet files": (Episodes(), "*.json"),
    "record of actions": (Record(), "*.actions"),
    "list of a record of actions": (ListOfRecord(), "*.actions"),
    "description of a record": (ListOfRecord(), "*.json"),
    "lines of batches": (Batches(), "*.json"),
    "checksums of these": (Batches(), ".*.crc32"),
    "state": (State(), "state.json"),
    "arrays of a state": (State(), "*.safetensors"),
    "checkpoint of a runner": (Checkpoint(), "*.*"),
}


@pytest.mark.slow
@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize(("kind", "pattern"), KINDS.values(), ids=KINDS)
def test_a_flipped_byte_is_an_error_or_makes_no_difference(kind, pattern, tmp_path):
    kind.write(tmp_path)
    whole = kind.read(tmp_path)
    files = sorted(tmp_path.rglob(pattern))
    rng = np.random.default_rng(FIRST_SEED)
    n_errors = 0
    for _ in range(FLIPS):
        file = files[rng.integers(len(files))]
        data = file.read_bytes()
        flipped = bytearray(data)
        at = int(rng.integers(len(data)))
        flipped[at] ^= int(rng.integers(1, 256))
        file.write_bytes(flipped)
        try:
            is_same = same(kind.read(tmp_path), whole)
        except FastmarlError:
            n_errors += 1
        else:
            assert is_same, f"byte {at} of {file.name} was {data[at]}, is {flipped[at]}: other data are read"
        file.write_bytes(data)
    assert n_errors


def same(got, want):
    try:
        assert_same(got, want, "data")
    except AssertionError:
        return False
    return True

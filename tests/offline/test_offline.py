"""Recording to Parquet files and reading them: what may be in episodes, and what may go wrong."""

import gc
import itertools
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from support.batches import assert_same_bits
from support.exactly import assert_same_episodes
from support.forked import exit_code_of
from support.full_disk import largest_file, no_room
from support.optional import needed
from support.scenario_envs import Echo, clock_env, respawn_env

import fastmarl
from fastmarl.batches import columns
from fastmarl.core.checkpoint.sealed_json import check_seal, sealed
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import ArraySource
from fastmarl.core.spaces.columns import Columns, Recorded
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.distributed import BackgroundSampler
from fastmarl.errors import ConfigError, OfflineError
from fastmarl.offline import ParquetReader, ParquetWriter, folder, parts, writer_thread
from fastmarl.offline.json_values import agent_from_text, agent_text
from fastmarl.offline.parts import FileParts

pytestmark = pytest.mark.needs("pyarrow")
SPREAD = "fastmarl.simple_spread"


def episode(agents, id_="e", module_id="p", lookback=0, **fields):
    """A chunk of given columns, whose first steps are its lookback: agent -> (observations, actions) or (observations,
    actions, extras, infos)."""
    parts = {}
    for agent, (obs, actions, *more) in agents.items():
        extras, infos = (*more, None, None)[:2]
        ((_, first), *_) = flatten_struct(actions)
        n = len(first)
        source = ArraySource(
            observations=obs, env_ts=np.arange(n + 1), actions=actions, rewards=np.arange(n) / 3, extras=extras,
            infos=infos,
        )  # fmt: skip
        parts[agent] = SingleAgentEpisode.of(
            agent_id=agent, module_id=module_id, multi_agent_episode_id=id_, observation_space=None, action_space=None,
            source=source, lookback=lookback, t_started=lookback, is_terminated=True,
        )  # fmt: skip
    n = max((len(part) for part in parts.values()), default=0)
    times = {"env_t_started": lookback, "env_t": lookback + n, "lookback": lookback}
    return MultiAgentEpisode.of_agents(agent_episodes=parts, id_=id_, **times, is_terminated=True, **fields)


def objects(*items):
    return np.fromiter(items, object, len(items))


def read(path):
    return [chunk for some in ParquetReader(path).iter_episodes() for chunk in some]


def write(path, *calls, **options):
    with ParquetWriter(path, **options) as file_writer:
        for chunks in calls:
            file_writer.write(chunks)


def assert_refused(path, text):
    for opened in (ParquetReader, ParquetWriter):
        with pytest.raises(OfflineError, match=text):
            opened(path)


def assert_comes_back(path, chunks, **options):
    write(path, chunks, **options)
    assert_same_episodes(read(path), chunks)


def run_script(code, path):
    return subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=120)


def spread(n=3, **options):
    config = fastmarl.EnvRunnerConfig(env=SPREAD, num_envs_per_env_runner=n, seed=1, **options)
    return fastmarl.MultiAgentEnvRunner(config)


PART = "parts/worker-000000-000000.json"
ONE = np.zeros((3, 1), np.float32), np.zeros(2, np.int64)
GRAPHS = [GraphInstance(np.ones((k, 2), np.float32), None, np.arange(2 * k).reshape(k, 2)) for k in (0, 1, 3)]
OBSERVATIONS = {
    "images": np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3),
    "no numbers": np.zeros((3, 0), np.float32),
    "no numbers among others": {"a": np.zeros((3, 2, 0), np.int8), "b": np.arange(3)},
    "scalars": np.array([0, 2**63, 2**64 - 1], np.uint64),
    "bits": np.array([[True, False, True]] * 3),
    "half": np.array([[np.nan, -0.0], [np.inf, 65504], [5.96e-8, 1]], np.float16),
    "odd NaNs": np.array([0x7FC00001, 0xFFC12345, 0x80000000], np.uint32).view(np.float32),
    "another byte order": np.array([[1.5], [2.5], [3.5]], ">f8"),
    "not contiguous": np.arange(24, dtype=np.int16).reshape(2, 3, 4)[1, :, ::2],
    "texts": objects("", "ö\0\ud800", "x" * 1000),
    "graphs": objects(*GRAPHS),
    "objects of several axes": objects(*range(12)).reshape(3, 2, 2),
    "no objects": np.empty((3, 0), object),
    "ragged": objects((), (np.ones(2), np.float32(3)), (np.int8(1),)),
    "nested": {"b": (np.arange(3), {"x": np.ones((3, 2))}), "a": {0: np.zeros(3), "0": np.ones(3), "b.0": np.ones(3)}},
    "points in names": {"a": {"b": np.zeros(3)}, "a.b": np.ones(3)},
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("obs", OBSERVATIONS.values(), ids=OBSERVATIONS)
@pytest.mark.parametrize("next_obs", [False, True])
@pytest.mark.parametrize("lookback", [0, 1])
def test_observations_of_every_kind(obs, next_obs, lookback, tmp_path):
    chunks = [
        episode({"a": (obs, np.array([-(2**63), 2**63 - 1]))}, lookback=lookback),
        episode({"b": (obs, np.arange(2))}, "f"),
    ]
    assert_comes_back(tmp_path, chunks, next_obs=next_obs)


def test_names_of_columns_that_outputs_have_too(tmp_path):
    plain = [name for key, name in vars(Columns).items() if key.isupper()]
    names = [*plain, "t", "env_t", "chunk", "module_id", "final_infos", "outputs.obs", 7, ("x", 1)]
    extras = {name: np.arange(2) + i for i, name in enumerate(name for name in names if name != Columns.ACTIONS)}
    extras |= {Recorded.ACTION_MASK: np.ones((2, 3), np.int8), "nested": {"obs": np.zeros(2), "t": (np.ones(2),)}}
    assert_comes_back(tmp_path, [episode({"a": (*ONE, extras)})])


def test_ids_that_look_alike(tmp_path):
    ids = [0, "0", -1, "-1", 2.5, "2.5", None, "null", True, "true", ("a", 0), '["a", 0]', b"a", "", '""', "NaN", " 7",
           float("inf"), frozenset({"x"}), "a\nb", "\ud800"]  # fmt: skip
    assert len(set(map(agent_text, ids))) == len(ids)
    assert [agent_from_text(agent_text(agent)) for agent in ids] == ids
    assert_comes_back(tmp_path, [episode(dict.fromkeys(ids, ONE))])


@pytest.mark.slow
def test_ids_that_are_equal_and_of_other_types(tmp_path):
    """Texts of ids are kept from one episode to the next."""
    ids = [0, False, 0.0, -0.0, np.float32(0), np.float32(-0.0), frozenset({0}), frozenset({False}), ("t", 0),
           ("t", False), ("t", ("u", 0)), ("t", ("u", 0.0)), ("t",), "t"]  # fmt: skip
    write(tmp_path, [episode({agent_id: ONE}, id_=str(n)) for n, agent_id in enumerate(ids)])
    assert [repr(agent_id) for each in read(tmp_path) for agent_id in each.agent_episodes] == [*map(repr, ids)]


def test_more_agents_than_a_dictionary_has_room_for(tmp_path):
    """Those of a file's column are written as numbers, as long as they fit into one page."""
    chunks = [episode({f"{i}" * 40: ONE for i in range(k * 2000, k * 2000 + 4200)}, f"e{k}") for k in range(2)]
    assert_comes_back(tmp_path, chunks)


def test_chunks_without_steps_and_agents_without(tmp_path):
    (chunk,) = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=clock_env, policies={"p": Echo()})).sample(
        num_timesteps=2
    )
    parts = chunk.agent_episodes
    chunk.agent_episodes = {"a1": parts["a1"].rows(0, 0, 0), "a0": parts["a0"]}
    parts["a0"].id_ = "its own"
    parts["a0"].custom_data["told"] = (1, 2)
    assert_comes_back(tmp_path, [episode({}), chunk, chunk[1:], chunk[2:]])


def test_modules_have_folders_of_their_own(tmp_path):
    ids = ["p", "a/b", "..", ".hidden", "", "100%", "x=1", "ünï", "%2E."]
    one = {"obs": np.zeros((3, 2))}, np.zeros(2, np.int64)
    chunks = [episode({"a": ONE if i % 2 else one}, f"e{i}", module_id) for i, module_id in enumerate(ids)]
    assert_comes_back(tmp_path / "x", chunks)
    assert ParquetReader(tmp_path / "x").module_ids == sorted(ids)
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_only_columns_that_some_rows_lack_may_have_nulls(tmp_path):
    with spread(output=tmp_path) as runner:
        runner.sample(num_timesteps=100)
    (file,) = tmp_path.glob(f"{folder.DATA}/*/*{folder.SUFFIX}")
    schema = needed("pyarrow.parquet").read_schema(file)
    lacked = {"terminateds", "truncateds", "infos", "final_env_t", "final_infos", "final_obs"}
    assert {field.name for field in schema if field.nullable} == lacked
    assert not schema.field("obs").type.value_field.nullable


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), r"info of agent 'a' at env step 1 of episode 'e'\['x'\]\[0\] is a builtins.object"),
        (np.array([{1: object()}]), r"\['x'\]\[0\]\[0\]\[1\] is a builtins.object"),
        (np.zeros(1, [("a", "i4")]), r"array of dtype \[\('a', '<i4'\)\]"),
    ],
)
def test_infos_that_json_can_not_hold_are_an_error(value, text, tmp_path):
    chunk = episode({"a": (*ONE, {}, [{}, {"x": [value]}, {}])})
    file_writer = ParquetWriter(tmp_path / "x")
    file_writer.write([chunk])
    with pytest.raises(OfflineError, match=text):
        file_writer.close()
    chunk = episode(
        {"a": (*ONE, {}, [{}, {"x": [value]}, {}])},
        common_infos={0: {"x": value}},
        waiting_infos={"a": {1: {"x": value}}},
    )
    chunk.agent_episodes["b"] = chunk.agent_episodes["a"].rows(1, 1, 0)
    chunk.agent_episodes["b"].agent_id = "b"
    write(tmp_path / "y", [chunk], columns=["seen"])
    (got,) = read(tmp_path / "y")
    assert {agent: each.get_infos() for agent, each in got.agent_episodes.items()} == {"a": [{}] * 3, "b": [{}]}
    assert got.chunk.common_infos == got.get_waiting_infos() == {}


def test_dtypes_that_parquet_has_not_are_an_error(tmp_path):
    file_writer = ParquetWriter(tmp_path)
    file_writer.write([episode({"a": (*ONE, {"z": np.zeros(2, complex)})})])
    with pytest.raises(OfflineError, match="column 'z' has dtype complex128, which Parquet does not support"):
        file_writer.close()


def test_batches_are_those_of_the_episodes(tmp_path):
    with spread() as runner:
        chunks = [chunk for _ in range(4) for chunk in runner.sample(num_timesteps=102)]
    write(tmp_path, chunks, max_rows_per_file=90)
    reader = ParquetReader(tmp_path)
    assert reader.num_rows() == reader.num_rows("default_policy") == 1224
    want = columns(chunks, next_obs=True)["default_policy"]
    got = list(reader.iter_batches(module_id="default_policy", batch_size=70, next_obs=True))
    assert [len(batch["t"]) for batch in got] == [70] * 17 + [34]
    names = ["obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "action_logp", "vf_preds"]
    whole = {name: np.concatenate([batch[name] for batch in got]) for name in names}
    assert_same_bits({"p": whole}, {"p": {name: want[name] for name in names}})
    agents = np.concatenate([batch["agent_id"] for batch in got])
    assert agents.tolist() == np.repeat(want["agent_id"], want["seq_lens"]).tolist()
    shuffled = list(
        reader.iter_batches(module_id="default_policy", batch_size=70, shuffle=True, seed=1, drop_last=True)
    )
    rewards = np.concatenate([batch["rewards"] for batch in shuffled])
    assert len(rewards) == 17 * 70 and not np.array_equal(rewards, want["rewards"][: 17 * 70])
    assert set(rewards.tolist()) <= set(want["rewards"].tolist())
    with pytest.raises(ConfigError, match=r"no steps of module 'q', only of \['default_policy'\]"):
        next(reader.iter_batches(module_id="q", batch_size=1))


def test_agent_ids_in_batches_are_those_of_the_episodes(tmp_path):
    ids = [0, "0", ("a", 1), "a"]
    write(tmp_path, [episode(dict.fromkeys(ids, ONE), f"e{i}") for i in range(2)])
    (batch,) = ParquetReader(tmp_path).iter_batches(module_id="p", batch_size=16)
    assert batch["agent_id"].tolist() == [each for each in ids for _ in range(2)] * 2


def test_steps_are_numbered_from_the_beginning_of_their_episode(tmp_path):
    """Also those of the lookback, which other programs read from its file."""
    pq = needed("pyarrow.parquet")
    obs, actions = np.zeros((6, 1), np.float32), np.zeros(5, np.int64)
    write(tmp_path, [episode({"a": (obs, actions), "b": (obs, actions)}, lookback=2)])
    for folder_name, expected in (("lookback", [0, 1]), ("data", [2, 3, 4])):
        table = pq.read_table(tmp_path / folder_name / "p/worker-000000-000000.parquet")
        assert table["t"].to_pylist() == expected * 2, folder_name


def test_env_states_that_come_back_can_be_written_to(tmp_path):
    write(tmp_path, [episode({"a": ONE}, env_states=np.zeros((3, 2)))])
    (got,) = read(tmp_path)
    got.get_env_states()[1] = 5
    assert got.get_env_states().tolist() == [[0, 0], [5, 5], [0, 0]]


def test_numbers_of_numpy_are_options(tmp_path):
    chunks = [episode({"a": ONE}, f"e{i}") for i in range(3)]
    write(tmp_path, chunks, max_rows_per_file=np.int64(2), timeout_s=np.int8(9))
    reader = ParquetReader(tmp_path)
    assert [len(some) for some in reader.iter_episodes(batch_size=np.int64(2))] == [2, 1]
    assert [len(each["t"]) for each in reader.iter_batches(module_id="p", batch_size=np.uint8(6))] == [6]
    for wrong in (0, True, 1.0):
        with pytest.raises(ConfigError, match=f"batch_size must be an integer >= 1, got {wrong}"):
            next(reader.iter_episodes(batch_size=wrong))


def test_batches_end_where_other_outputs_begin(tmp_path):
    chunks = [episode({"a": (*ONE, {"x": np.ones(2)} if i % 3 else None)}, f"e{i}") for i in range(6)]
    assert_comes_back(tmp_path, chunks)
    batches = list(ParquetReader(tmp_path).iter_batches(module_id="p", batch_size=1000))
    assert [len(batch["t"]) for batch in batches] == [4, 8]
    assert ["x" in batch for batch in batches] == [False, True]


def test_changes_after_writing_are_not_in_the_file(tmp_path):
    with spread(episode_lookback_horizon=0) as runner, ParquetWriter(tmp_path) as file_writer:
        first, second = runner.sample(num_timesteps=30), runner.sample(num_timesteps=30)
        for chunk in first:
            assert chunk.agent_episodes
            chunk.custom_data.update({"x": [1, {"z": {3}}, (4, [5])], "array": np.zeros(2)})
            chunk.agent_episodes["agent_0"].custom_data["x"] = [1]
        want = [pickle.loads(pickle.dumps(chunk)) for chunk in first]
        file_writer.write(first)
        for one, other in zip(first, second, strict=True):
            one.custom_data["y"] = 2
            x = one.custom_data["x"]
            x.append(6)
            x[1]["z"].add(7)
            x[2][1].append(8)
            one.custom_data["array"][0] = 9
            one.agent_episodes["agent_0"].custom_data["x"].append(10)
            one.concat_episode(other)
    assert_same_episodes(read(tmp_path), want)


def test_rewards_that_wait_change_no_more_once_they_are_to_be_written(tmp_path):
    chunk = episode({"a": ONE}, hanging_rewards={"a": 1.0})
    with ParquetWriter(tmp_path) as file_writer:
        parcel = file_writer.prepared([chunk])
        chunk.chunk.hanging_rewards["a"] = 2.0
        file_writer.write_once(parcel)
    assert [each.chunk.hanging_rewards for each in read(tmp_path)] == [{"a": 1.0}]


@pytest.mark.parametrize("is_over", [False, True])
def test_custom_data_of_an_unread_chunk_may_come_after_writing(is_over, tmp_path):
    with spread(1) as runner, ParquetWriter(tmp_path) as file_writer:
        (chunk,) = runner.sample(num_timesteps=25 if is_over else 10)
        file_writer.write([chunk])
        chunk.custom_data["x"] = 1
    (got,) = read(tmp_path)
    assert got.custom_data == {}


# Files.


def test_a_folder_that_has_data_gets_more(tmp_path):
    with spread() as runner:
        calls = [runner.sample(num_timesteps=60) for _ in range(4)]
    one, other = ParquetWriter(tmp_path), ParquetWriter(tmp_path)  # two at once, of one number
    for i, call in enumerate(calls):
        (one, other)[i % 2].write(call)
        one.flush()
        other.flush()
    one.close()
    other.close()
    write(tmp_path, calls[0])
    assert_same_episodes(read(tmp_path), [chunk for call in [*calls, calls[0]] for chunk in call])


def test_the_working_directory_may_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file_writer = ParquetWriter("x")
    reader = ParquetReader("x")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    file_writer.write([episode({"a": ONE})])
    file_writer.close()
    assert reader.num_rows() == ParquetReader(tmp_path / "x").num_rows() == 2


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    for path, opened, text in (
        (tmp_path, ParquetWriter, r"has no recorded episodes: it has 'thesis.tex'; .* with recorded episodes$"),
        (tmp_path / "thesis.tex/run", ParquetWriter, "can't write episodes to the folder .*run: .*Not a directory"),
        (tmp_path, ParquetReader, "has no recorded episodes"),
        (tmp_path / "nowhere", ParquetReader, "has no recorded episodes: it has no folder 'parts'"),
    ):
        with pytest.raises(OfflineError, match=text):
            opened(path)


@pytest.mark.parametrize("files", [["parts/wheel.stl"], ["parts/.hidden", "car.stl"], ["data/mine.csv"]])
def test_a_folder_of_other_things_is_refused_whatever_its_names(files, tmp_path):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert_refused(tmp_path, f"{tmp_path} has no recorded episodes: it has ")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(files)


def test_a_folder_may_have_other_files_next_to_recorded_episodes(tmp_path):
    write(tmp_path, [episode({"a": ONE})])
    (tmp_path / "README.md").touch()
    write(tmp_path, [episode({"a": ONE}, "f")])
    assert len(read(tmp_path)) == 2


def test_a_folder_that_was_begun_is_gone_on_with(tmp_path):
    """By a writer that was killed before its first part was whole."""
    folder.open_folder(tmp_path)
    folder.claim(tmp_path, 0, 0)
    (tmp_path / "data/p").mkdir(parents=True)
    (tmp_path / "data/p/.worker-000000-000000.parquet.tmp").touch()
    assert read(tmp_path) == []
    assert_comes_back(tmp_path, [episode({"a": ONE})])


def test_a_folder_of_an_earlier_version_says_which_fastmarl_reads_it(tmp_path):
    (tmp_path / "meta").mkdir()
    content = {"format": "fastmarl.offline", "version": 2, "fastmarl_version": "0.0.9", "modules": {}}
    (tmp_path / "meta/info.json").write_text(sealed(content))
    assert_refused(tmp_path, r"version 2, but fastmarl .* reads only version 3: .* with fastmarl 0.0.9")


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    write(tmp_path, [episode({"a": ONE})])
    file = tmp_path / "data/p/worker-000000-000000.parquet"
    data = bytearray(file.read_bytes())
    file.write_bytes(data[:-20])
    for use in (read, lambda path: ParquetReader(path).num_rows()):
        with pytest.raises(OfflineError, match=f"can't read {file}.*is it damaged"):
            use(tmp_path)
    data[50] ^= 1
    file.write_bytes(data)
    with pytest.raises(OfflineError, match=f"{file} is damaged: its checksum does not match"):
        read(tmp_path)


@pytest.mark.parametrize("kind", ["data", "lookback"])
def test_a_missing_file_is_an_error(kind, tmp_path):
    with spread(episode_lookback_horizon=3) as runner:
        chunks = [chunk for _ in range(2) for chunk in runner.sample(num_timesteps=15)]
    write(tmp_path, chunks)
    file = tmp_path / kind / "default_policy/worker-000000-000000.parquet"
    file.unlink()
    with pytest.raises(OfflineError, match=rf"can't read {file}: No such file or directory; is it missing\?"):
        read(tmp_path)


def test_batches_of_a_part_that_lacks_a_file_are_an_error(tmp_path):
    """For any module, since it is unknown whose steps are missing."""
    other = "data/q/worker-000000-000000.parquet"
    for i, module in enumerate(("p", "q")):
        write(tmp_path / str(i), [episode({"a": ONE}), episode({"a": ONE}, "f", "q")])
        (tmp_path / str(i) / other).unlink()
        (tmp_path / str(i) / "data/q/worker-000001-000000.parquet").touch()  # of an incomplete part
        with pytest.raises(OfflineError, match=f"can't read .*{other}: No such file or directory; is it missing"):
            list(ParquetReader(tmp_path / str(i)).iter_batches(module_id=module, batch_size=4))


def test_a_file_of_another_writer_is_an_error(tmp_path):
    """It may lack columns."""
    write(tmp_path, [episode({"a": ONE})])
    file = tmp_path / "meta/episodes/worker-000000-000000.parquet"
    parquet = needed("pyarrow.parquet")
    parquet.write_table(parquet.read_table(file).drop_columns(["duration_s", "env_t"]), file)
    with pytest.raises(OfflineError, match=rf"can't read {file}: it has .*, expected .* from another writer"):
        read(tmp_path)


def test_an_unfinished_part_does_not_affect_later_ones(tmp_path, monkeypatch):
    """Its files may remain; without the hidden ones nothing shows that its number was taken."""
    write(tmp_path, [episode({"a": ONE})])
    (tmp_path / PART).unlink()
    later = [episode({"a": ONE}, "f", "q")]
    assert_comes_back(tmp_path, later)

    monkeypatch.setattr(folder, "write_sealed", no_room)
    with pytest.raises(OfflineError, match="No space left"):
        write(tmp_path, [episode({"a": ONE}, "g", "r")])
    assert not list(tmp_path.glob("data/r/*")) and len(list(tmp_path.glob("parts/*"))) == 1
    assert_same_episodes(read(tmp_path), later)


def test_a_failed_removal_hides_no_error(tmp_path, monkeypatch):
    def stay(path, missing_ok=False):
        raise OSError(f"{path} stays")

    file_writer = ParquetWriter(tmp_path)
    monkeypatch.setattr(folder, "write_sealed", no_room)
    monkeypatch.setattr(Path, "unlink", stay)
    file_writer.write([episode({"a": ONE})])
    with pytest.raises(OfflineError, match=r"could not be written to .*: OSError: .*No space left"):
        file_writer.close()


def test_a_file_that_can_not_be_begun_leaves_nothing(tmp_path, monkeypatch):
    from pyarrow import parquet

    class NoRoom(parquet.ParquetWriter):
        def __init__(self, where, *args, **kwargs):
            super().__init__(where, *args, **kwargs)
            self.close()
            no_room()

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter", NoRoom)
    with pytest.raises(OfflineError, match="No space left"):
        write(tmp_path, [episode({"a": ONE})])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_files_end_where_they_are_large(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "ENOUGH_BYTES", 10_000)
    write_at_once(monkeypatch, 1)
    chunks = [episode({"a": (np.zeros((3, 1500), np.uint8), np.arange(2))}, f"e{i}") for i in range(6)]
    write(tmp_path, *([chunk] for chunk in chunks))
    assert len(list(tmp_path.glob("data/p/*"))) == 3
    assert_same_episodes(read(tmp_path), chunks)


def resealed(of_file=(), **changes):
    """Return a function that changes a description, and its entry of the file of data."""

    def change(text):
        content = check_seal(json.loads(text))
        next(file for file in content["files"] if file["kind"] == "data").update(of_file)
        return sealed({**content, **changes})

    return change


DAMAGES = {  # what is changed, and what the error says of it
    "another format": (lambda text: '{"format": "another"}', "does not describe recorded episodes"),
    "no seal": (lambda text: '{"format": "fastmarl.offline", "version": 3}', "is damaged: its content does not match"),
    "cut off": (lambda text: "{", "is damaged: Expecting"),
    "fields of files": (resealed(files=[{"kind": "data"}]), "is damaged: .* missing"),
    "no files": (resealed(files=3), "is damaged: .* not iterable"),
    "no dict of modules": (resealed(modules=["p"]), "is damaged: 'list' object has no"),
    "no columns": (resealed(modules={"p": 3}), "is damaged: 'int' object is not iterable"),
    **{f"version {version}": (lambda text, version=version: json.dumps({**json.loads(text), "version": version}),
                              f"format version {version}, but .* reads only version 3") for version in (2, 4)},
    **{str(entry): (resealed(entry), "is damaged: invalid file entry PartFile") for entry in (
        {"kind": "../data"}, {"kind": ["data"]}, {"module_id": None}, {"module_id": 3}, {"kind": "meta/episodes"},
        {"form": "/../../x"}, {"form": "2"}, {"form": -1}, {"form": True}, {"n_rows": "2"}, {"n_rows": None},
        {"n_bytes": 1.0}, {"checksum": [1]})},
}  # fmt: skip


@pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=DAMAGES)
def test_a_description_that_is_damaged_or_changed(damage, text, tmp_path):
    write(tmp_path, [episode({"a": ONE})])
    (tmp_path / PART).write_text(damage((tmp_path / PART).read_text()))
    assert_refused(tmp_path, f"{PART}.* {text}")


def test_a_full_disk_is_one_clear_error(tmp_path):
    """A limit of the file size stands for it: the system answers the same way."""
    with spread(16) as runner:
        chunks = runner.sample(num_timesteps=4000)
    file_writer = ParquetWriter(tmp_path, compression="none")
    file_writer.write(chunks[:10])
    file_writer.flush()
    with largest_file(100_000):
        file_writer.write(chunks[10:])
        with pytest.raises(OfflineError, match=f"could not be written to {tmp_path}: OSError: .*File too large"):
            file_writer.flush()
    with pytest.raises(OfflineError, match="File too large"):
        file_writer.write(chunks[:1])
    file_writer.close()  # it has been said
    assert_same_episodes(read(tmp_path), chunks[:10])
    assert not list(tmp_path.glob("data/*/.*"))


def write_until_killed(path):
    runner, file_writer = spread(), ParquetWriter(path, max_rows_per_file=300)
    for i in range(40):
        file_writer.write(runner.sample(num_timesteps=75))  # each call fills a part but the last ones
        if i == 20:
            file_writer.flush()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_kill_loses_no_complete_file(tmp_path):
    assert exit_code_of(write_until_killed, tmp_path) == -signal.SIGKILL
    with spread() as runner:
        calls = [runner.sample(num_timesteps=75) for _ in range(40)]
    names = sorted(tmp_path.glob("parts/worker*"))
    got = read(tmp_path)
    n = len(got)
    want = [chunk for call in calls for chunk in call][:n]
    assert n >= 21 * 3 and len(names) >= 16
    for one, other in zip(got, want, strict=True):  # another run has other ids
        assert one.env_t == other.env_t
        np.testing.assert_array_equal(
            *(each.agent_episodes["agent_1"].get_observations() for each in (one, other)), strict=True
        )
    half = tmp_path / "data/default_policy/.worker-000000-000999.parquet.tmp"
    half.write_bytes(b"PAR1 half a file")
    (tmp_path / "data/default_policy/worker-000000-000998.parquet").write_bytes(b"whose part is not whole")
    write(tmp_path, calls[0])
    assert len(read(tmp_path)) == n + len(calls[0])
    reader = ParquetReader(tmp_path)
    batches = reader.iter_batches(module_id="default_policy", batch_size=64)
    assert sum(len(batch["t"]) for batch in batches) == reader.num_rows()


# The thread.


def write_at_once(monkeypatch, n_rows):
    """Make this number of rows a batch."""
    monkeypatch.setattr(writer_thread, "FIRST_ROWS", n_rows)
    monkeypatch.setattr(writer_thread, "MOST_ROWS", n_rows)


class Gate:
    """Keeps the thread from writing until it is opened."""

    def __init__(self, monkeypatch):
        self.opened, add = threading.Event(), FileParts.add

        def wait_and_add(files, *args):
            assert self.opened.wait(60)
            add(files, *args)

        monkeypatch.setattr(FileParts, "add", wait_and_add)


def test_a_full_queue_blocks_and_does_not_grow(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    write_at_once(monkeypatch, 1)
    file_writer = ParquetWriter(tmp_path, max_queue_size=4, timeout_s=0.2)
    chunks = [episode({"a": ONE}, f"e{i}") for i in range(6)]
    n = 3  # one is being written, two wait, which have two rows each
    for chunk in chunks[:n]:
        file_writer.write([chunk])
    with pytest.raises(OfflineError, match=r"had no room for 1 more episodes in 0.2 s; if the disk is slow"):
        file_writer.write([chunks[n]])
    file_writer._timeout_s = 60
    blocked = threading.Thread(target=file_writer.write, args=([chunks[n]],))
    blocked.start()
    blocked.join(0.3)
    assert blocked.is_alive()
    gate.opened.set()
    blocked.join(60)
    file_writer.close()
    assert_same_episodes(read(tmp_path), chunks[: n + 1])


def test_an_error_in_the_thread_is_raised_by_the_next_call_and_once_by_close(tmp_path):
    bad = episode({object(): ONE})
    file_writer = ParquetWriter(tmp_path)
    file_writer.write([bad])
    with pytest.raises(OfflineError, match=r"could not be written to .*: the agent id <object .* is a builtins.object"):
        file_writer.close()
    file_writer.close()
    with pytest.raises(OfflineError, match="the agent id"):
        file_writer.write([bad])
    with pytest.raises(ZeroDivisionError), ParquetWriter(tmp_path) as other:  # the body's error is the one that counts
        1 / 0  # noqa: B018
    assert other._thread.is_alive() is False
    assert read(tmp_path) == []


@pytest.mark.parametrize("at_once", [1, 1000])
def test_an_episode_that_can_not_be_written_loses_none_before_it(at_once, tmp_path, monkeypatch):
    write_at_once(monkeypatch, at_once)
    good = [episode({"a": ONE}, f"e{i}") for i in range(3)]
    file_writer = ParquetWriter(tmp_path, max_rows_per_file=4)
    for chunk in (*good, episode({object(): ONE}), episode({"a": ONE}, "after it")):
        try:
            file_writer.write([chunk])
        except OfflineError:  # of the thread, if it came so far
            break
    with suppress(OfflineError):
        file_writer.close()
    with pytest.raises(OfflineError, match="the agent id"):
        file_writer.flush()
    assert_same_episodes(read(tmp_path), good)


def test_an_error_wakes_writers_that_wait_for_room(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    write_at_once(monkeypatch, 1)
    file_writer = ParquetWriter(tmp_path, max_queue_size=1)
    threading.Timer(0.3, gate.opened.set).start()
    bad = [episode({object(): ONE})]
    with pytest.raises(OfflineError, match="the agent id"):
        any(file_writer.write(bad) for _ in range(4))


def test_use_after_close_and_in_another_process(tmp_path):
    file_writer = ParquetWriter(tmp_path)
    pid = os.fork()
    if not pid:
        try:
            file_writer.write([episode({"a": ONE})])
        except OfflineError as error:
            os._exit(7 if "belongs to another process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    file_writer.write([episode({"a": ONE})])
    file_writer.close()
    file_writer.close()
    for call in (lambda: file_writer.write([]), file_writer.flush, file_writer.__enter__):
        with pytest.raises(OfflineError, match="was closed; create a new one, which adds to the folder"):
            call()
    assert len(read(tmp_path)) == 1


def test_episodes_given_while_another_thread_closes_are_written_or_refused(tmp_path, monkeypatch):
    write_at_once(monkeypatch, 3)  # two calls
    for turn in range(20):
        file_writer, written, refused = ParquetWriter(tmp_path / str(turn), max_queue_size=1), [], []

        def write_until_refused(who, file_writer=file_writer, written=written, refused=refused):
            for n in itertools.count():
                chunk = episode({"a": ONE}, f"{who}-{n}")
                try:
                    file_writer.write([chunk])
                except OfflineError as error:
                    refused.append(str(error))
                    return
                written.append(chunk)

        threads = [threading.Thread(target=write_until_refused, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        file_writer.close()
        for thread in threads:
            thread.join(60)
        assert ["was closed" in text for text in refused] == [True] * 3
        found = read(tmp_path / str(turn))
        assert sorted(each.id_ for each in found) == sorted(each.id_ for each in written)


def test_the_thread_sleeps_until_there_is_enough_or_nothing_has_come_for_a_while(tmp_path, monkeypatch):
    write_at_once(monkeypatch, 6)  # of 2 rows a call
    added, add = [], FileParts.add

    def note_and_add(files, some, *args):
        added.append(len(some))
        add(files, some, *args)

    monkeypatch.setattr(FileParts, "add", note_and_add)
    with ParquetWriter(tmp_path) as file_writer:
        for n in range(4):
            file_writer.write([episode({"a": ONE}, f"e{n}")])
        file_writer.flush()
        assert added == [3, 1]
    monkeypatch.setattr(writer_thread, "IDLE_S", 0.05)
    with ParquetWriter(tmp_path) as file_writer:
        file_writer.write([episode({"a": ONE}, "last")])
        deadline = time.monotonic() + 60
        while len(added) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert added == [3, 1, 1]


UNCLOSED = """
import sys
import fastmarl
from fastmarl.offline import ParquetWriter
writer = ParquetWriter(sys.argv[1])
config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread")
writer.write(fastmarl.MultiAgentEnvRunner(config).sample(num_timesteps=25))
"""


@pytest.mark.slow
def test_an_unclosed_writer_ends_with_its_last_reference_or_the_process(tmp_path):
    file_writer = ParquetWriter(tmp_path / "here")
    file_writer.write([episode({"a": ONE})])
    thread = file_writer._thread
    with pytest.MonkeyPatch.context() as patch:
        # Garbage is collected anywhere, such as under a lock that the thread needs: nothing may wait there.
        patch.setattr(writer_thread, "wait_for", lambda *args: pytest.fail("the collector waits"))
        del file_writer
        gc.collect()
    thread.join(60)
    assert not thread.is_alive() and len(read(tmp_path / "here")) == 1
    done = run_script(UNCLOSED, tmp_path / "there")
    assert done.returncode == 0 and done.stderr == "" and len(read(tmp_path / "there")) == 1


SLOW = """
import os, signal, threading, time
from fastmarl.offline import ParquetReader
from fastmarl.offline.parts import FileParts
add = FileParts.add
FileParts.add = lambda *args: (time.sleep(1), add(*args))
"""
INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    writer.close()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    AFTERWARDS
assert sum(map(len, ParquetReader(sys.argv[1]).iter_episodes())) == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("afterwards", ["raise", pytest.param("writer.close()", marks=pytest.mark.exhaustive)])
def test_a_close_that_was_interrupted_loses_nothing(afterwards, tmp_path):
    """Neither if it is called again, nor if the process ends."""
    done = run_script(SLOW + UNCLOSED + INTERRUPTED.replace("AFTERWARDS", afterwards), tmp_path / "there")
    assert done.stdout == "interrupted\n" and (done.returncode == 0) == (afterwards != "raise"), done.stderr
    assert len(read(tmp_path / "there")) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_rows_per_file": 0}, "max_rows_per_file must be an integer >= 1, got 0"),
        ({"compression": "zip"}, r"compression must be one of \['none', .*, got 'zip'"),
        ({"columns": "obs"}, "columns must be None or a collection of output names, got 'obs'"),
        ({"timeout_s": 0}, "timeout_s must be a positive number of seconds, got 0"),
        ({"max_queue_size": True}, "max_queue_size must be an integer >= 1, got True"),
    ],
)
def test_options_that_can_not_be_right(options, text, tmp_path):
    with pytest.raises(ConfigError, match=text):
        ParquetWriter(tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("timeout_s", [math.inf, 1e300, 10**10])
def test_a_timeout_may_be_infinite(timeout_s, tmp_path, monkeypatch):
    write_at_once(monkeypatch, 1)
    chunks = [episode({"a": ONE}, f"e{i}") for i in range(20)]
    with ParquetWriter(tmp_path, max_queue_size=1, timeout_s=timeout_s) as file_writer:
        for chunk in chunks:  # it waits for room now and then
            file_writer.write([chunk])
        file_writer.flush()
    assert_same_episodes(read(tmp_path), chunks)


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for opened in (ParquetReader, ParquetWriter):
        with pytest.raises(ConfigError, match="Parquet files need pyarrow: pip install pyarrow "):
            opened(tmp_path)


# By the runner.


def test_a_runner_writes_the_episodes_that_it_returns(tmp_path):
    config = fastmarl.EnvRunnerConfig(
        env=respawn_env, num_envs_per_env_runner=2, respawn=True, policies={"p": Echo()}, output=tmp_path,
        output_max_rows_per_file=20, output_config={"compression": "lz4"}, worker_index=3,
    )  # fmt: skip
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        chunks = [chunk for _ in range(5) for chunk in runner.sample(num_timesteps=17)]
        runner.evaluate(2)
    assert_same_episodes(read(tmp_path), chunks)
    files = sorted(each.name for each in tmp_path.glob("data/p/*"))
    assert len(files) > 3 and all(name.startswith("worker-000003-") for name in files)
    runner.stop()


@pytest.mark.slow
def test_processes_that_sample_write_files_of_their_own(tmp_path):
    config = fastmarl.EnvRunnerConfig(env=SPREAD, rollout_fragment_length=25, output=str(tmp_path))
    with BackgroundSampler(config, processes=2, max_policy_lag=0, start_method="fork") as sampler:
        rows = [sampler.next()["default_policy"]["rewards"] for _ in range(3)]
    assert sum(map(len, rows)) == ParquetReader(tmp_path).num_rows() == 450
    names = sorted(file.name for file in tmp_path.glob("data/default_policy/*"))
    assert names == ["worker-000001-000000.parquet", "worker-000002-000000.parquet"]


def test_a_runner_that_can_not_write_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OfflineError, match="can't write episodes to the folder"):
        spread(output=tmp_path / "file")
    with pytest.raises(ConfigError, match=r"output_config must be a dict with some of the keys \['compression', "):
        spread(output=tmp_path / "x", output_config={"compresion": "lz4"})
    for options in ({"output_max_rows_per_file": 5}, {"output_config": {"compression": "lz4"}}):
        with pytest.raises(ConfigError, match='has no effect without output="a folder"'):
            spread(**options)


# Others read the files.


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(data folder, the batch that is in its files): Dict observations; agents end at different times."""
    path = tmp_path_factory.mktemp("recorded")
    rng = np.random.default_rng(3)
    chunks = []
    for i in range(30):
        agents = {}
        for agent in range(3):
            n = int(rng.integers(1, 9))
            obs = {
                "position": rng.random((n + 1, 2), np.float32),
                "pixels": rng.integers(0, 255, (n + 1, 2, 2), np.uint8),
            }
            agents[agent] = (obs, rng.integers(0, 5, n), {"action_logp": rng.random(n, np.float32)})
        chunks.append(episode(agents, f"e{i}"))
    write(path, chunks, max_rows_per_file=150)
    return path / "data" / "p", columns(chunks)["p"]


def assert_same_table(rows, batch):
    """rows: column -> list."""
    position = np.array([np.asarray(each) for each in rows["obs.position"]], np.float32)
    np.testing.assert_array_equal(position, batch["obs"]["position"])
    pixels = np.array([np.asarray(each) for each in rows["obs.pixels"]]).reshape(-1, 2, 2)
    np.testing.assert_array_equal(pixels, batch["obs"]["pixels"])
    for name in ("actions", "rewards", "terminateds", "action_logp"):
        np.testing.assert_array_equal(np.array(rows[name], batch[name].dtype), batch[name])
    last = [each is not None for each in rows["final_obs.position"]]
    np.testing.assert_array_equal(last, batch["terminateds"])
    assert list(map(str, rows["agent_id"])) == np.repeat(batch["agent_id"], batch["seq_lens"]).astype(str).tolist()


@pytest.mark.needs("polars")
def test_polars_reads_the_files(recorded):
    polars = needed("polars")
    folder, batch = recorded
    table = polars.read_parquet(folder / "*.parquet")
    assert table.schema["obs.pixels"] == polars.Array(polars.UInt8, 4)
    assert_same_table(table.to_dict(as_series=False), batch)
    returns = table.group_by("eps_id", "agent_id").agg(polars.col("rewards").sum())
    assert len(returns) == 90


@pytest.mark.needs("duckdb")
def test_duckdb_reads_the_files(recorded):
    duckdb = needed("duckdb")
    folder, batch = recorded
    with duckdb.connect() as connection:
        found = connection.sql(f"select * from '{folder}/*.parquet'")
        rows = dict(zip(found.columns, map(list, zip(*found.fetchall(), strict=True)), strict=True))
        sums = connection.sql(f"select sum(rewards) from '{folder}/*.parquet' group by eps_id, agent_id").fetchall()
    assert_same_table(rows, batch)
    assert len(sums) == 90


def test_spaces_of_gymnasium_that_are_no_arrays(tmp_path):
    space = gym.spaces.Sequence(gym.spaces.Discrete(3))
    items = objects(*(space.sample() for _ in range(3)))
    assert_comes_back(tmp_path, [episode({"a": (items, np.arange(2))})])

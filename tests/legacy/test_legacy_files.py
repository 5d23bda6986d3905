"""Batches in files: written, read, mixed and shuffled."""

import itertools
import json
import pickle
import zipfile
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from support.legacy import all_p0, config_with

from fastmarl.errors import BatchError, ConfigError, OfflineError
from fastmarl.legacy import (
    InputReader,
    IOContext,
    JsonReader,
    JsonWriter,
    MixedInput,
    MultiAgentBatch,
    OutputWriter,
    PPOTorchPolicy,
    RolloutWorker,
    SampleBatch,
    ShuffledInput,
    json_to_parquet,
)
from fastmarl.legacy.batches.packing import pack, unpickled
from fastmarl.legacy.files.json_format import checksums_file, from_json, to_json
from fastmarl.legacy.files.json_reader import lines_of
from fastmarl.offline import ParquetReader


def numbered(i, n=3):
    """A batch whose observations are all i."""
    return SampleBatch({"obs": np.full((n, 2), i, np.float32), "rewards": np.arange(n, dtype=np.float32)})


def write(folder, batches, **options):
    writer = JsonWriter(folder, **options)
    for batch in batches:
        writer.write(batch)
    writer.close()


def number_of(batch):
    return int(batch["obs"][0, 0])


class Numbered(InputReader):
    def __init__(self, start=0):
        self.i = start - 1

    def next(self):
        self.i += 1
        return numbered(self.i)


@pytest.mark.parametrize("compress_columns", [(), ("obs",), None])
def test_written_batches_are_read_back(tmp_path, compress_columns):
    infos = [{"a": np.float32(0.5), ("x", 1): [np.int64(3), None]}, {"b": np.array([True])}, {"c": {1}}]
    batch = SampleBatch({
        "obs": {"a": np.float32([[1], [2], [3]]), "b": (np.arange(3), np.zeros((3, 2), np.uint8))},
        "actions": np.array([1, 0, 2]),
        "rewards": np.float32([0.1, np.nan, np.inf]),
        "terminateds": np.array([False, False, True]),
        "infos": np.array(infos, object),
        "eps_id": np.array([2**56 - 1] * 3),
    })  # fmt: skip
    write(tmp_path, [batch, MultiAgentBatch({"p": batch, "q": numbered(4)}, 7)], compress_columns=compress_columns)
    space = gym.spaces.Dict(a=gym.spaces.Box(0, 1, (1,)), b=gym.spaces.Tuple((gym.spaces.Discrete(3),) * 2))
    [path] = tmp_path.glob("*.json")
    for line in path.read_text().splitlines():
        again = from_json(line, {"p": (space, None), "q": (None, None)})
        if isinstance(again, MultiAgentBatch):
            assert again.count == 7 and np.array_equal(again["q"]["obs"], numbered(4)["obs"])
            again = again["p"]
        assert again["obs"]["a"].tolist() == [[1], [2], [3]]
        assert isinstance(again["obs"]["b"], tuple) and again["obs"]["b"][0].tolist() == [0, 1, 2]
        if compress_columns != ():
            assert again["obs"]["a"].dtype == np.float32 and again["obs"]["b"][1].dtype == np.uint8
        np.testing.assert_array_equal(np.float32(again["rewards"]), batch["rewards"])
        assert again["eps_id"].tolist() == batch["eps_id"].tolist()
        assert again["terminateds"].dtype == bool
        assert list(again["infos"]) == [{"a": 0.5, "('x', 1)": [3, None]}, {"b": [True]}, {"c": "{1}"}]


def test_policies_of_any_id_are_written(tmp_path):
    write(tmp_path, [MultiAgentBatch({0: numbered(5), "p1": numbered(6)}, 3)])
    assert {id_: number_of(batch) for id_, batch in JsonReader(tmp_path).next().policy_batches.items()} == {
        "0": 5,
        "p1": 6,
    }


def test_dones_of_older_files_are_terminateds():
    batch = from_json(json.dumps({"type": "SampleBatch", "obs": [1, 2], "dones": [False, True]}))
    assert batch["terminateds"].tolist() == [False, True]


def test_a_file_is_followed_by_another_when_it_is_full(tmp_path):
    write(tmp_path, [numbered(i) for i in range(5)], max_file_size=1)
    write(tmp_path, [numbered(i) for i in range(5, 7)], max_file_size=1)  # in the same second, by the same worker
    write(tmp_path, [numbered(7), numbered(8)])
    files = sorted(tmp_path.glob("*.json"))
    assert len(files) == 8 and all(path.name.startswith("output-") for path in files)
    assert sorted(map(number_of, JsonReader(tmp_path).read_all_files())) == list(range(9))


def test_reading_never_ends_and_has_each_file_at_once(tmp_path):
    for i in range(3):
        write(tmp_path, [numbered(10 * i + k) for k in range(4)])
    reader = JsonReader(str(tmp_path / "*.json"))
    read = [number_of(reader.next()) for _ in range(400)]  # 100 files: one of the three is missed in 1 of 10^17 runs
    for begin in range(0, 400, 4):
        assert [number % 10 for number in read[begin : begin + 4]] == [0, 1, 2, 3]
    assert {number // 10 for number in read} == {0, 1, 2}


def test_zipped_files_and_lists(tmp_path):
    write(tmp_path, [numbered(1), numbered(2)])
    [plain] = tmp_path.glob("*.json")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.write(plain, "inner.json")
    for inputs in (tmp_path / "packed.zip", [tmp_path / "packed.zip"], [str(plain)]):
        assert [number_of(batch) for batch in JsonReader(inputs).read_all_files()] == [1, 2]
    assert len(list(JsonReader(tmp_path).read_all_files())) == 4


def test_lines_without_a_batch_are_left_out(tmp_path, caplog):
    (tmp_path / "a.json").write_text("\n".join([
        "", "{", "[1]", '{"type": "Other"}', '{"obs": [1]}', '{"type": "MultiAgentBatch"}', '{"type": "SampleBatch", '
        '"obs": "bm8="}', to_json(numbered(5), ()), '{"type": "SampleBatch"',
    ]))  # fmt: skip
    (tmp_path / "empty.json").write_text("")
    reader = JsonReader(tmp_path)
    assert [number_of(reader.next()) for _ in range(5)] == [5] * 5
    assert "a.json, line 2 contains no batch: JSONDecodeError" in caplog.text
    assert "line 7 contains no batch" in caplog.text
    assert len(list(reader.read_all_files())) == 1
    (tmp_path / "a.json").unlink()
    with pytest.raises(BatchError, match="100 lines of"):
        JsonReader(tmp_path).next()


def test_a_line_that_is_no_text_is_left_out(tmp_path, caplog):
    write(tmp_path, [numbered(i) for i in range(3)], compress_columns=())
    [path] = tmp_path.glob("*.json")
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second.replace(b"rewards", b"rew\xffrds") + third)
    checksums_file(path).unlink()  # as in RLlib's files
    assert [number_of(batch) for batch in JsonReader(path).read_all_files()] == [0, 2]
    assert "line 2 contains no batch: UnicodeDecodeError" in caplog.text


def test_a_line_with_another_checksum_is_left_out(tmp_path, caplog):
    write(tmp_path, [numbered(i) for i in range(4)], compress_columns=())
    [path] = tmp_path.glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"[1.0, 1.0]", b"[1.0, 9.0]", 1)[:-5])  # the last line is cut off
    reader = JsonReader(tmp_path)
    assert [number_of(reader.next()) for _ in range(6)] == [0, 2] * 3
    for line in (2, 4):
        assert f"line {line} is damaged: its checksum does not match {checksums_file(path)}" in caplog.text
    path.write_bytes(b"\n" + path.read_bytes())
    with pytest.raises(BatchError, match="100 lines of"):
        JsonReader(path).next()
    checksums_file(path).unlink()
    assert [number_of(batch) for batch in JsonReader(path).read_all_files()] == [0, 1, 2]


def test_a_file_may_be_longer_or_shorter_than_its_checksums(tmp_path):
    """It is being written, or its writer was killed."""
    write(tmp_path, [numbered(i) for i in range(3)])
    [path] = tmp_path.glob("*.json")
    checksums, lines = checksums_file(path).read_bytes(), path.read_bytes()
    for size in (0, 9, 18, 27):
        checksums_file(path).write_bytes(checksums[:size])
        assert [number_of(batch) for batch in JsonReader(path).read_all_files()] == [0, 1, 2]
    path.write_bytes(lines[: lines.index(b"\n") + 1])
    assert [number_of(batch) for batch in JsonReader(path).read_all_files()] == [0]


class Interrupted(BaseException):
    pass


class Failing:
    """A file to which nothing can be written."""

    def __init__(self, error):
        self._error = error

    def tell(self):
        return 0

    def write(self, data):
        raise self._error

    def close(self):
        pass


@pytest.mark.parametrize("error", [Interrupted(), OSError(28, "No space left on device")])
def test_a_line_that_could_not_be_written_spoils_no_others(tmp_path, caplog, error):
    writer = JsonWriter(tmp_path)
    writer.write(numbered(0))
    lines, checksums = writer._files
    writer._files = Failing(error), checksums
    with pytest.raises(type(error)):
        writer.write(numbered(9))
    lines.close()
    for i in (1, 2):
        writer.write(numbered(i))
    writer.close()
    assert [number_of(batch) for batch in JsonReader(tmp_path).read_all_files()] == [0, 1, 2]
    assert not caplog.text


def test_a_damaged_zip_is_read_up_to_the_damage(tmp_path, caplog):
    write(tmp_path / "plain", [numbered(i) for i in range(3)], compress_columns=())
    [plain] = (tmp_path / "plain").glob("*.json")
    file = tmp_path / "packed.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("a", "b"):
            archive.write(plain, name)
    data, at = file.read_bytes(), file.read_bytes().rindex(b"rewards")
    file.write_bytes(data[:at] + b"R" + data[at + 1 :])
    reader = JsonReader(file)
    read = [number_of(reader.next()) for _ in range(7)]
    assert read[:3] == [0, 1, 2] and read.count(0) >= 2
    assert "packed.zip can't be read after line" in caplog.text and "BadZipFile: Bad CRC-32" in caplog.text
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(BatchError, match="100 lines of"):
        JsonReader(file).next()


def test_reading_goes_on_after_an_interrupt_or_an_error(tmp_path):
    write(tmp_path, [numbered(0)])
    reader = JsonReader(tmp_path)
    [path] = tmp_path.glob("*.json")
    content = path.read_bytes()
    path.unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            reader.next()
    path.write_bytes(content)
    reader.next()
    with pytest.raises(Interrupted):
        reader._lines.throw(Interrupted)
    assert number_of(reader.next()) == 0


def test_a_transposed_array_of_newer_pickles_is_read():
    """NumPy gives the order of axes that have been exchanged to pickles of protocol 5, the default of Python 3.14."""
    for axes in itertools.permutations(range(3)):
        array = np.arange(24).reshape(2, 3, 4).transpose(axes)
        for protocol in (3, 4, 5):
            np.testing.assert_array_equal(unpickled(pickle.dumps(array, protocol)), array)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_flipped_bit_of_a_zip_is_no_error(tmp_path, method):
    file = tmp_path / "packed.zip"
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a", to_json(numbered(0), ()))
        archive.writestr("b", to_json(numbered(1), ()))
    data = file.read_bytes()
    for at in range(len(data)):
        for bit in (at % 8, (at + 3) % 8):
            file.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            assert {number_of(batch) for batch in JsonReader(file).read_all_files()} <= {0, 1}
    file.unlink()
    file.mkdir()
    with pytest.raises(IsADirectoryError):
        next(lines_of(file))


class Evil:
    def __reduce__(self):
        return eval, ("print('run by a file')",)


def test_a_file_runs_no_code(tmp_path, capsys, caplog):
    lines = [json.dumps({"type": "SampleBatch", "obs": pack(value)}) for value in (Evil(), np.arange(3))]
    (tmp_path / "a.json").write_text("\n".join(lines))
    assert JsonReader(tmp_path).next()["obs"].tolist() == [0, 1, 2]
    assert capsys.readouterr().out == "" and "refers to builtins.eval" in caplog.text


@pytest.mark.parametrize("inputs", ["/nowhere/*.json", ["/nowhere/a.json"], [], 3])
def test_files_that_are_not_there(inputs):
    with pytest.raises(ConfigError):
        JsonReader(inputs)


def test_shuffled_batches():
    assert [number_of(ShuffledInput(Numbered(), n).next()) for n in (0, 1)] == [0, 0]
    plain = ShuffledInput(Numbered(), 1)
    assert [number_of(plain.next()) for _ in range(5)] == [0, 1, 2, 3, 4]
    shuffled = ShuffledInput(Numbered(), 8, seed=1)
    read = [number_of(shuffled.next()) for _ in range(50)]
    assert read != sorted(read)
    assert all(number <= i + 8 for i, number in enumerate(read))


def test_mixed_inputs(tmp_path):
    write(tmp_path, [numbered(0)])
    context = IOContext(None, config_with(policies=None, policy_mapping_fn=None), 0, worker=None)
    mixed = MixedInput({lambda io_context: Numbered(1): 0.75, lambda io_context: Numbered(-(10**6)): 0.25}, context)
    read = [number_of(mixed.next()) for _ in range(400)]
    assert 250 < sum(number > 0 for number in read) < 350
    for shares in ({"sampler": 0.5}, {"sampler": 1.5, str(tmp_path): -0.5}):
        with pytest.raises(ConfigError, match="sum to 1"):
            MixedInput(shares, context)


# With a worker.


def test_a_worker_writes_its_batches_and_reads_them_back(tmp_path):
    with RolloutWorker(config=config_with(output=str(tmp_path))) as worker:
        sampled = [worker.sample() for _ in range(3)]
    with RolloutWorker(config=config_with(input_=str(tmp_path))) as worker:
        for written in sampled:
            read = worker.sample()
            assert read.count == written.count
            for policy_id, columns in written.policy_batches.items():
                assert list(read[policy_id]) == list(columns)
                for name, column in columns.items():
                    np.testing.assert_array_equal(np.asarray(read[policy_id][name], np.asarray(column).dtype), column)
            worker.learn_on_batch(read)


def test_a_worker_writes_to_its_log_dir(tmp_path):
    with RolloutWorker(config=config_with(output="logdir"), log_dir=str(tmp_path), worker_index=2) as worker:
        worker.sample()
    [path] = tmp_path.glob("*.json")
    assert "_worker-2_0.json" in path.name
    with pytest.raises(ConfigError, match="log_dir"):
        RolloutWorker(config=config_with(output="logdir"))
    with pytest.raises(ConfigError, match="output must be None"):
        RolloutWorker(config=config_with(output=3))


def test_a_worker_with_writers_and_readers_of_its_own():
    written = []

    class Kept(OutputWriter):
        def __init__(self, io_context):
            assert io_context.worker_index == 0 and io_context.config.seed == 3

        def write(self, sample_batch):
            written.append(sample_batch)

    class Single(Numbered):
        def __init__(self, io_context):
            assert isinstance(io_context.worker, RolloutWorker)
            super().__init__(io_context.worker.worker_index)

    options = {"policies": None, "policy_mapping_fn": None, "output": Kept, "num_envs_per_env_runner": 1}
    with RolloutWorker(config=config_with(input_=Single, **options)) as worker:
        batch = worker.sample()
    assert written == [batch] and batch.count == 21, "seven batches of three make the 20 steps"


def test_batches_that_do_not_fit_each_other_are_one_error_and_no_more():
    class Mixed(Numbered):
        def __init__(self, io_context):
            super().__init__()

        def next(self):
            batch = super().next()
            if self.i == 1:
                del batch["rewards"]
            return batch

    options = {"policies": None, "policy_mapping_fn": None, "num_envs_per_env_runner": 1}
    with RolloutWorker(config=config_with(input_=Mixed, rollout_fragment_length=6, **options)) as worker:
        with pytest.raises(Exception, match="rewards"):
            worker.sample()
        assert worker.sample()["obs"][:, 0].tolist() == [2, 2, 2, 3, 3, 3]


def test_a_worker_samples_and_reads(tmp_path):
    with RolloutWorker(config=config_with(output=str(tmp_path), policy_mapping_fn=all_p0)) as worker:
        worker.sample()
    with RolloutWorker(config=config_with(input_={"sampler": 0.5, str(tmp_path): 0.5})) as worker:
        batches = [worker.sample() for _ in range(40)]
    kinds = Counter("p1" in batch.policy_batches for batch in batches)
    assert min(kinds[True], kinds[False]) > 5


def test_batches_from_files_go_through_the_hook(tmp_path):
    class Counting(PPOTorchPolicy):
        def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
            assert len(set(sample_batch["eps_id"])) == 1 and episode is None
            sample_batch["around"] = np.full(len(sample_batch), len(sample_batch))
            return sample_batch

    one = SampleBatch({"obs": np.zeros((5, 4), np.float32), "eps_id": np.array([1, 1, 2, 2, 2])})
    write(tmp_path, [one])
    options = {"policies": None, "policy_mapping_fn": None, "num_envs_per_env_runner": 1, "rollout_fragment_length": 1}
    config = config_with(input_=str(tmp_path), postprocess_inputs=True, **options)
    with RolloutWorker(config=config, default_policy_class=Counting) as worker:
        assert worker.sample()["around"].tolist() == [2, 2, 3, 3, 3]
    write(tmp_path / "several", [MultiAgentBatch({"p0": one, "p1": one}, 5)])
    config = config_with(input_=str(tmp_path / "several"), postprocess_inputs=True)
    with RolloutWorker(config=config) as worker, pytest.raises(BatchError, match="a single policy"):
        worker.sample()


def test_files_for_other_policies(tmp_path):
    for name, batch in (("one", numbered(1)), ("other", MultiAgentBatch({"p9": numbered(1)}, 3))):
        write(tmp_path / name, [batch])
        refused = pytest.raises(BatchError, match=r"line 1: .*the worker has .*\['p0', 'p1'\]")
        with RolloutWorker(config=config_with(input_=str(tmp_path / name))) as worker, refused:
            worker.sample()


def test_workers_begin_with_different_files(tmp_path):
    for i in range(3):
        write(tmp_path, [MultiAgentBatch({"p0": numbered(i, 40)}, 40)])
    first = []
    for index in (1, 2):
        with RolloutWorker(config=config_with(input_=str(tmp_path)), worker_index=index, num_workers=2) as worker:
            first.append(number_of(worker.sample()["p0"]))
    assert first == [1, 2]


# To Parquet.


def steps(rows, **columns):
    """A batch of rows (episode, agent, t, terminated, truncated); observation i is i, and i + 1 comes after it."""
    episode, agent, t, terminated, truncated = map(np.array, zip(*rows, strict=True))
    obs = np.arange(len(t), dtype=np.float32)[:, None]
    return SampleBatch({
        "obs": obs, "new_obs": obs + 1, "actions": np.arange(len(t)), "rewards": obs[:, 0], "eps_id": episode,
        "agent_index": agent, "t": t, "terminateds": terminated.astype(bool), "truncateds": truncated.astype(bool),
        "unroll_id": np.zeros(len(t), np.int64), **columns,
    })  # fmt: skip


@pytest.mark.needs("pyarrow")
def test_trajectories_in_json_become_episodes(tmp_path):
    batches = [
        MultiAgentBatch(
            {
                "p": steps([(7, 0, 3, 0, 0), (7, 0, 5, 1, 0), (7, 2, 3, 1, 0), (8, 0, 0, 0, 0)]),
                "q": steps([(7, 1, 4, 0, 1), (8, 1, 0, 0, 0), (8, 1, 0, 0, 0)]),  # the last one stands there twice
            },
            4,
        ),
        steps([(9, 0, 0, 1, 0)], infos=[{"x": 1}], seq_lens=np.array([1, 0]), extra=np.array([2.5])),
    ]
    write(tmp_path / "json", batches)
    assert json_to_parquet(tmp_path / "json", tmp_path / "parquet", columns=["extra", "infos"]) == 8
    chunks = [chunk for some in ParquetReader(tmp_path / "parquet").iter_episodes() for chunk in some]
    names = ("id_", "agent_episodes", "env_t_started", "env_t", "is_terminated", "is_truncated")
    found = [tuple(getattr(chunk, name) for name in names) for chunk in chunks]
    found = [(id_, list(agents), *rest) for id_, agents, *rest in found]
    assert found == [
        ("7", [0, 2, 1], 3, 6, False, True),
        ("8", [0, 1], 0, 1, False, False),
        ("8", [1], 0, 1, False, False),
        ("9", [0], 0, 1, True, False),
    ]
    in_turns = chunks[0].agent_episodes[0]
    assert in_turns.env_ts().tolist() == [3, 5, 6] and in_turns.module_id == "p"
    assert in_turns.get_observations().ravel().tolist() == [0, 1, 2] and in_turns.is_terminated
    last = chunks[-1].agent_episodes[0]
    assert last.get_infos() == [{"x": 1}, {}] and last.module_id == "default_policy"
    assert last.get_extra_model_outputs() == {"extra": [2.5]}


@pytest.mark.needs("pyarrow")
def test_json_that_holds_no_episodes_is_an_error(tmp_path):
    no_end = steps([(7, 0, 0, 1, 0)])
    del no_end["new_obs"]
    tuples = steps([(7, 0, 0, 0, 0), (7, 0, 1, 0, 0)], actions=(np.zeros(2), np.zeros(2), np.zeros(2)))
    for batch, text in ((no_end, r"has no columns \['new_obs'\]"), (tuples, "'actions' .* for each of 2 rows")):
        write(tmp_path / text[:5], [batch])
        with pytest.raises(OfflineError, match=text):
            json_to_parquet(tmp_path / text[:5], tmp_path / "parquet")
    with pytest.raises(ConfigError, match="found no files"):
        json_to_parquet(tmp_path / "nowhere", tmp_path / "parquet")

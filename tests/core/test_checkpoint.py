import hashlib
import json
import math
import os
import pathlib
import shutil
import struct
import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.differences import assert_same
from support.interrupts import interrupted
from support.trees import spoilt

from fastmarl.checkpoint import load_state, save_state
from fastmarl.core.checkpoint import folder as checkpoint
from fastmarl.core.checkpoint import sealed_json
from fastmarl.errors import CheckpointError

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]


def arrays_file(folder):
    (file,) = folder.glob("arrays-*.safetensors")
    return file


@pytest.fixture
def saved(tmp_path):
    """A checkpoint with some of everything, and the state in it."""
    state = {
        "rng": np.random.default_rng(7).bit_generator.state,
        "weights": {"default_policy": {"layer.weight": np.arange(12, dtype=np.float32).reshape(3, 4)}},
        "counters": [0, -1, 2**200, 0.1, float("inf"), None, True, "text \ud800 ü"],
    }
    save_state(tmp_path / "checkpoint", state)
    return tmp_path / "checkpoint", state


@pytest.fixture
def folder(saved):
    return saved[0]


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)  # fmt: skip
keys = st.text() | st.just("$") | st.integers() | st.tuples(st.text(), st.integers())
trees = st.recursive(leaves, lambda t: st.lists(t) | st.tuples(t, t) | st.dictionaries(keys, t), max_leaves=8)


@pytest.mark.slow
@given(state=trees)
@example(state=struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0])
@example(state=[-math.nan, math.inf, -math.inf, math.nan])
def test_any_tree_comes_back_equal(state, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    save_state(folder, state)
    assert_same(load_state(folder), state)
    shutil.rmtree(folder)


def test_a_generator_goes_on_where_it_was_saved(tmp_path):
    rng = np.random.default_rng(3)
    save_state(tmp_path, {"rng": rng.bit_generator.state})
    expected = rng.random(5)
    rng.bit_generator.state = load_state(tmp_path)["rng"]
    np.testing.assert_array_equal(rng.random(5), expected)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4).T,
        np.arange(12)[::-2],
        np.arange(3, dtype=">i4"),
        np.broadcast_to(np.float32(2), (2, 2)),
    ],
    ids=["transposed", "reversed", "big-endian", "broadcast"],
)
def test_memory_layout_does_not_matter(tmp_path, array):
    save_state(tmp_path, array)
    np.testing.assert_array_equal(load_state(tmp_path), array)


def test_tensors_come_back_as_arrays(tmp_path):
    state = {
        "a": torch.ones(2, 3, requires_grad=True),
        "b": torch.tensor([1.5], dtype=torch.bfloat16),
        "c": torch.tensor(4),
    }
    save_state(tmp_path, state)
    loaded = load_state(tmp_path)
    assert_same(
        loaded, {"a": np.ones((2, 3), np.float32), "b": np.array([1.5], np.float32), "c": np.array(4, dtype=np.int64)}
    )
    assert loaded["a"].flags.writeable


def test_numpy_scalars_come_back_as_python_numbers(tmp_path):
    save_state(tmp_path, [np.float32(0.5), np.int64(3), np.bool_(True), np.float64("nan"), np.str_("a")])
    assert_same(load_state(tmp_path), [0.5, 3, True, float("nan"), "a"])
    save_state(tmp_path, {np.int64(3): 0, (np.int8(1), np.str_("a")): 1})
    assert repr(load_state(tmp_path)) == "{3: 0, (1, 'a'): 1}"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [1, {2}]}, r"state\['a'\]\[1\] is a set"),
        ({"a": np.array(["x"], object)}, r"state\['a'\] is an array of dtype object"),
        ({"a": np.array(["x"])}, r"state\['a'\] is an array of dtype <U1"),
        ({frozenset(): 1}, r"state has the key frozenset\(\)"),
        ({np.timedelta64(1, "s"): 1}, r"state has the key .*timedelta64\(1,'s'\) of type"),
        ({("a", np.complex64(1)): 1}, r"state has the key \('a', .*\) of type tuple"),
        ((lambda: 0,), r"state\[0\] is a function"),
    ],
)
def test_unsupported_values_are_named_and_the_old_checkpoint_is_kept(saved, state, message):
    folder, before = saved
    with pytest.raises(CheckpointError, match=message):
        save_state(folder, state)
    assert_same(load_state(folder), before)


@pytest.mark.parametrize("failing_call", [0, 1])
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_failed_save_leaves_the_old_checkpoint_and_no_litter(saved, monkeypatch, name, failing_call):
    folder, before = saved
    files = sorted(folder.iterdir())
    real, calls = getattr(os, name), []

    def failing(*args):
        calls.append(args)
        if len(calls) == failing_call + 1:
            raise OSError(28, "No space left on device")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, name, failing)
        with pytest.raises(OSError, match="No space left"):
            save_state(folder, {"x": np.zeros(3)})
    assert_same(load_state(folder), before)
    save_state(folder, before)
    assert sorted(folder.iterdir()) == files


def test_saving_again_replaces_the_arrays_and_keeps_foreign_files(folder):
    mine = ["notes.txt", "arrays-of-mine.safetensors", ".state.json.swp"]
    for name in mine:
        (folder / name).write_text("mine")
    save_state(folder, {"x": np.zeros(3)})
    arrays = json.loads((folder / "state.json").read_text())["content"]["arrays"]
    assert_same(load_state(folder), {"x": np.zeros(3)})
    assert sorted(f.name for f in folder.iterdir()) == sorted([*mine, "state.json", arrays])


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere/state\.json does not exist"):
        load_state(tmp_path / "nowhere")


def test_missing_arrays_are_named(folder):
    file = arrays_file(folder)
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.name} does not exist; the checkpoint is incomplete"):
        load_state(folder)


def test_a_newer_version_asks_for_an_upgrade(folder):
    document = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(document | {"version": checkpoint.VERSION + 1, "content": "unknown"}))
    with pytest.raises(CheckpointError, match=r"state\.json was written by a newer fastmarl .* upgrade fastmarl"):
        load_state(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", "[" * 100_000, '{"format": "x", "version": 1, "content": {}}']
)
def test_another_json_file_is_refused(folder, text):
    (folder / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        load_state(folder)


def each_file(folder):
    return [folder / "state.json", arrays_file(folder)]


@pytest.mark.parametrize("which", [0, 1], ids=["json", "arrays"])
def test_a_file_cut_anywhere_is_refused(folder, which):
    file = each_file(folder)[which]
    blob = file.read_bytes()
    for length in range(len(blob)):
        file.write_bytes(blob[:length])
        with pytest.raises(CheckpointError, match=f"{file.name} is damaged"):
            load_state(folder)


def test_a_flipped_bit_in_the_arrays_is_refused(folder):
    file = arrays_file(folder)
    for flipped in flipped_copies(file.read_bytes()):
        file.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=f"{file.name} is damaged"):
            load_state(folder)


def test_a_flipped_bit_in_the_json_is_refused_or_harmless(saved):
    folder, before = saved
    file = folder / "state.json"
    blob = file.read_bytes()
    harmless = 0
    for flipped in flipped_copies(blob):
        file.write_bytes(flipped)
        try:
            loaded = load_state(folder)
        except CheckpointError:
            continue
        assert_same(loaded, before)  # white space carries nothing
        harmless += 1
    assert harmless <= blob.count(b" ") + blob.count(b"\n")


def flipped_copies(blob):
    """`blob` with one bit flipped, for each byte."""
    for position in range(len(blob)):
        flipped = bytearray(blob)
        flipped[position] ^= 1 << position % 8
        yield flipped


# Files that no save has made, with checksums that fit.


def sign(folder, content):
    """Write `content` to the folder's state.json, as `save_state` would."""
    document = json.loads((folder / "state.json").read_text())
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    (folder / "state.json").write_text(json.dumps(document | {"content": content, "sha256": digest}))


def test_content_that_was_changed_and_signed_is_refused_or_another_tree(tmp_path):
    """Whatever it says, nothing but CheckpointError comes of it."""
    state = {"a": np.zeros((2, 2)), "b": [np.zeros(2, np.complex128), {1: float("inf")}], "c": (2**70, None), "$": 1}
    save_state(tmp_path, state)
    content = json.loads((tmp_path / "state.json").read_text())["content"]
    n_refused = 0
    for _, changed in spoilt(content):
        try:
            sign(tmp_path, changed)
        except TypeError:  # arrays, which no JSON can hold
            continue
        try:
            load_state(tmp_path)
        except CheckpointError:
            n_refused += 1
    assert n_refused > 100


@pytest.mark.parametrize(
    "name", ["../secret", "/dev/zero", "", ".", "arrays-0123456789abcdef.safetensors/../x", "a\0b"]
)
def test_only_arrays_files_of_the_same_folder_are_read(folder, name):
    content = json.loads((folder / "state.json").read_text())["content"]
    sign(folder, content | {"arrays": name})
    with pytest.raises(CheckpointError, match="its content is not a checkpoint"):
        load_state(folder)


def test_content_nested_too_deeply_is_refused(folder):
    content = json.loads((folder / "state.json").read_text())["content"]
    tree = []
    for _ in range(900):
        tree = [tree]
    sign(folder, content | {"tree": tree})
    limit = sys.getrecursionlimit()
    if sys.version_info >= (
        3,
        12,
    ):  # a level takes one frame instead of two, and none of those that are counted in json
        sys.setrecursionlimit(limit // 2)
    try:
        with pytest.raises(CheckpointError, match="cannot be decoded"):
            load_state(folder)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("which", [0, 1], ids=["json", "arrays"])
@pytest.mark.parametrize("make", [pathlib.Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_folders_and_pipes_in_place_of_files_are_refused(folder, which, make):
    file = each_file(folder)[which]
    file.unlink()
    make(file)
    with pytest.raises(CheckpointError, match=f"{file.name} cannot be read .*(Is a directory|not a regular file)"):
        load_state(folder)


def test_a_path_that_is_a_file_or_none_is_refused(folder):
    for path in (folder / "state.json", folder / "\0", ""):
        with pytest.raises(CheckpointError, match=r"state\.json"):
            load_state(path)


def test_arrays_of_another_checkpoint_are_refused(folder, tmp_path):
    other = tmp_path / "other"
    save_state(other, {"x": np.zeros(3)})
    shutil.copy(arrays_file(other), arrays_file(folder))
    with pytest.raises(CheckpointError, match="do not match the checksum"):
        load_state(folder)
    shutil.copy(other / "state.json", folder / "state.json")
    with pytest.raises(CheckpointError, match="does not exist; the checkpoint is incomplete"):
        load_state(folder)


# Saves that end before their time.


# An interrupt between open() and its `with` leaves the closing to the garbage collector.
between_lines = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def without_waiting(monkeypatch):
    """Saves don't wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@between_lines
@pytest.mark.usefixtures("without_waiting")
@pytest.mark.parametrize("module", [checkpoint, sealed_json])
def test_a_save_interrupted_at_any_line_leaves_the_old_checkpoint_or_the_new(module, tmp_path):
    old, new = {"x": np.zeros(3), "n": 0}, {"x": np.ones(3), "n": [1, (2.5, {3: None})]}
    n, outcomes = 0, []
    save_state(tmp_path, old)
    while interrupted(lambda: save_state(tmp_path, new), file=module.__file__, at=n):
        outcomes.append(load_state(tmp_path)["n"] != 0)
        assert_same(load_state(tmp_path), new if outcomes[-1] else old)
        save_state(tmp_path, old)
        assert len(list(tmp_path.iterdir())) == 2
        n += 1
    assert outcomes == sorted(outcomes)
    assert False in outcomes
    assert True in outcomes
    assert_same(load_state(tmp_path), new)


@between_lines
@pytest.mark.usefixtures("without_waiting")
@pytest.mark.parametrize("module", [checkpoint, sealed_json])
def test_a_first_save_interrupted_at_any_line_leaves_a_checkpoint_or_none(module, tmp_path):
    n = 0
    while interrupted(lambda n=n: save_state(tmp_path / str(n), {"x": np.ones(3)}), file=module.__file__, at=n):
        if (tmp_path / str(n) / "state.json").exists():
            assert_same(load_state(tmp_path / str(n)), {"x": np.ones(3)})
        else:
            with pytest.raises(CheckpointError, match="does not exist"):
                load_state(tmp_path / str(n))
        n += 1
    assert n > 15


def test_leftovers_of_a_killed_process_are_removed(saved):
    folder, state = saved
    for file in each_file(folder):
        (folder / f".{file.name}.{'0' * 32}").write_text("half")
    assert_same(load_state(folder), state)
    save_state(folder, state)
    assert len(list(folder.iterdir())) == 2

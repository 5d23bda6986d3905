"""src_ext/_store.pyx, blocks and their leases."""

import gc
import subprocess
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.rows import ListRows

from fastmarl.core.episodes.lane_source import BlockColumns, LaneRows
from fastmarl.core.native import _build, _store
from fastmarl.core.native._module_rows import ModuleRows
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.store.block import GROWTH, Block, OutputFormError
from fastmarl.core.store.memory import MemoryRing

SPACE = gym.spaces.Box(0, 255, (2,), np.uint8)


def random_rows(rng, n, n_lanes):
    rows = ListRows()
    for env_t in range(n):
        rows.append(int(rng.integers(n_lanes)), env_t, None)
    prev_R = np.full(max(n, 1), -9)
    for lane in range(n_lanes):
        indices = rows.indices(lane)
        prev_R[indices] = [-1, *indices[:-1]][: len(indices)]
    return rows, prev_R


@pytest.mark.parametrize(("n", "n_lanes"), [(1, 1), (60, 1), (400, 7)])
def test_chain_matches_the_lists(rng, n, n_lanes):
    rows, prev_R = random_rows(rng, n, n_lanes)
    for lane in range(n_lanes):
        indices = rows.indices(lane)
        for k in range(1, len(indices) + 1):
            got, stride = _store.chain(prev_R, indices[-1], k)
            assert got.tolist() == indices[-k:]
            distances = set(np.diff(got).tolist())
            assert stride == (1 if k == 1 else distances.pop() if len(distances) == 1 else 0)


@pytest.mark.skipif(not _build.CHECKED, reason="needs the checked build")
def test_checked_build_catches_rows_out_of_range():
    with pytest.raises(IndexError):
        _store.chain(np.zeros(3, np.int64), 7, 2)


@pytest.mark.skipif(not _build.SANITIZED, reason="needs the sanitized build")
def test_sanitized_build_ends_the_process_at_rows_out_of_range():
    code = "import numpy, fastmarl.core.native._store as store; store.chain(numpy.zeros(3, numpy.int64), 7, 2)"
    process = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert process.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in process.stderr
    assert "_store." in process.stderr


def test_chain_of_nothing():
    assert _store.chain(np.zeros(0, np.int64), -1, 0)[0].tolist() == []


@pytest.mark.parametrize(("dtype", "shape"), [
    ("u1", ()), ("f4", ()), ("i8", ()), ("f4", (18,)), ("c16", (2, 3)), ("U5", (2,)), ("f4", (0,)), ("f8", (2, 0)),
])  # fmt: skip
@pytest.mark.parametrize("counts", [[0], [7], [5, 0, 3, 0], [1] * 20])
def test_gather_is_take_and_concatenate(rng, dtype, shape, counts):
    def column(kind):
        values = rng.integers(0, 100, (12, *shape)).astype(dtype)
        if kind == "every second":
            return np.repeat(values, 2, 0)[::2]
        if kind == "backwards":
            return values[::-1]
        if kind == "broadcast":
            return np.broadcast_to(values[:1], values.shape)
        return np.asfortranarray(values) if kind == "Fortran" else values

    kinds = ("C", "Fortran", "every second", "backwards", "broadcast")
    columns = [column(kinds[i % len(kinds)]) for i in range(len(counts))]
    rows = rng.integers(0, 12, sum(counts))
    pieces = np.split(rows, np.cumsum(counts)[:-1])
    expected = np.concatenate([each.take(piece, 0) for each, piece in zip(columns, pieces, strict=True)])
    got = _store.gather(columns, rows, np.array(counts))
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tobytes() == expected.tobytes()
    assert not any(np.shares_memory(got, each) for each in columns)


@pytest.mark.parametrize(("columns", "rows", "counts", "error"), [
    ([np.zeros((3, 2))], [3], [1], IndexError),
    ([np.zeros((3, 2))], [-1], [1], IndexError),
    ([np.zeros((0, 2))], [0], [1], IndexError),
    ([np.zeros(3)], [0, 1], [1], ValueError),
    ([np.zeros(3)], [0], [1, 0], ValueError),
    ([np.zeros(3), np.zeros(3)], [0], [2, -1], ValueError),
    ([], np.zeros(0, int), np.zeros(0, int), ValueError),
    ([np.zeros(3), np.zeros(3, "f4")], [0, 0], [1, 1], TypeError),
    ([np.zeros((3, 2)), np.zeros((3, 3))], [0, 0], [1, 1], TypeError),
    ([np.zeros(3, object)], [0], [1], TypeError),
])  # fmt: skip
def test_gather_refuses_columns_and_rows_that_it_cannot_copy(columns, rows, counts, error):
    with pytest.raises(error):
        _store.gather(columns, np.array(rows), np.array(counts))


@pytest.mark.parametrize("n_lanes", [1, 5])
@pytest.mark.parametrize("lookback", [0, 1, 10, 1000])
@pytest.mark.parametrize("at_least", [0, 1, 5, 1000])
def test_carried_matches_the_lists(rng, n_lanes, lookback, at_least):
    n = 200
    rows, prev_R = random_rows(rng, n, n_lanes)
    env_t_R = np.arange(n, dtype=np.int32)
    lanes = rng.permutation(n_lanes).astype(np.int32)
    row_L = np.array([rows.indices(lane)[-1] for lane in range(n_lanes)])
    count_L = np.array([len(rows.indices(lane)) for lane in range(n_lanes)], np.int32)
    from_env_t = np.full(n_lanes, n - lookback, np.int32)
    got, counts = _store.carried(lanes, row_L, count_L, from_env_t, prev_R, env_t_R, at_least)
    expected = []
    for lane in lanes:
        *others, last = rows.indices(lane)
        in_lookback = sum(row >= n - lookback for row in others)
        expected.append([last, *others[::-1][: max(in_lookback, at_least)]])
    assert got.tolist() == [row for rows_of_lane in expected for row in rows_of_lane]
    assert counts.tolist() == [len(rows_of_lane) for rows_of_lane in expected]


def test_carried_of_no_lanes():
    nothing = np.zeros(0, np.int32)
    rows, counts = _store.carried(nothing, np.zeros(0, np.int64), nothing, nothing, np.zeros(0, np.int64), nothing)
    assert rows.tolist() == counts.tolist() == []


def filled_block(pool, n=10):
    rows = ModuleRows()
    block = Block(RowLayout(SPACE), pool, rows)
    block.obs[0][:n] = np.arange(2 * n).reshape(n, 2)
    block.prev_R[:n] = np.arange(n) - 1
    block.reward_R[:n] = np.arange(n)
    block.env_t_R[:n] = np.arange(n)
    rows.n = n
    block.record(0, n, {"actions": np.arange(n), ("state", "h"): np.ones((n, 3), np.float32)})
    return block


@pytest.mark.slow
def test_views_of_a_block_keep_its_memory_and_their_death_gives_it_back():
    pool = MemoryRing()
    block = filled_block(pool)
    source = BlockColumns(LaneRows(block, 9, 10, -1, 9))
    tensor = torch.from_numpy(source.observations())
    del block, source
    gc.collect()
    other = filled_block(pool)  # would be the same memory if it had been given back
    other.obs[0][:] = 0
    assert tensor.tolist() == [[2 * i, 2 * i + 1] for i in range(10)]
    address = tensor.data_ptr()
    del tensor, other
    gc.collect()
    borrowers = filled_block(pool), filled_block(pool)
    assert address in {borrower.obs[0].ctypes.data for borrower in borrowers}


@pytest.mark.slow
def test_memory_may_be_given_back_from_another_thread():
    pool = MemoryRing()
    held = [filled_block(pool)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join(timeout=10)
    gc.collect()
    assert len(pool._idle) == 1


def test_growing_keeps_rows_and_leaves_older_views_alone():
    block = filled_block(MemoryRing())
    view = block.obs[0][:10]
    before = view.copy()
    capacity = block.rows.capacity
    block.make_room(capacity)
    assert block.rows.capacity == GROWTH * capacity
    np.testing.assert_array_equal(block.obs[0][:10], before)
    np.testing.assert_array_equal(block.outputs["actions"][:10], np.arange(10))
    block.obs[0][:] = 0
    np.testing.assert_array_equal(view, before)


def test_an_output_that_is_missing_once_becomes_nan_there():
    block = filled_block(MemoryRing())
    block.rows.n = 14
    block.record(10, 2, {"actions": np.array([7, 7]), "logp": np.ones(2, np.float32)})
    block.record(12, 2, {"actions": np.array([8, 8])})
    assert np.isnan(block.outputs["logp"][:10]).all()
    assert block.outputs["logp"][10:12].tolist() == [1, 1]
    assert np.isnan(block.outputs["logp"][12:14]).all()
    assert np.isnan(block.outputs["state", "h"][10:14]).all()
    assert block.outputs["actions"][9:14].tolist() == [9, 7, 7, 8, 8]


@pytest.mark.parametrize("n", [0, 1, 5])
def test_write_rows_matches_slices_and_touches_nothing_else(rng, n):
    outputs = {"actions": rng.integers(0, 9, n), ("state", "h"): rng.normal(size=(n, 3)).astype(np.float32)}
    columns = {key: np.full((9, *array.shape[1:]), 77, array.dtype) for key, array in outputs.items()}
    expected = {key: column.copy() for key, column in columns.items()}
    for key, array in outputs.items():
        expected[key][2 : 2 + n] = array
    assert _store.write_rows(columns, outputs, 2, n)
    for key, column in columns.items():
        np.testing.assert_array_equal(column, expected[key])


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ({}, np.zeros(2)),
        ({"x": np.zeros(9, np.float32)}, np.zeros(2)),
        ({"x": np.zeros(9, np.int64)}, np.ones(2)),
        ({"x": np.zeros((9, 2))}, np.zeros((2, 3))),
        ({"x": np.zeros(9)}, np.zeros(4)[::2]),
        ({"x": np.zeros(3)}, np.zeros(2)),
        ({"x": np.zeros(9), "y": np.zeros(9)}, np.zeros(2)),
    ],
    ids=["no column", "dtype", "dtype of equal size", "shape", "strided", "too short", "one lacks"],
)
def test_write_rows_leaves_odd_cases_to_the_slow_way(columns, values):
    assert not _store.write_rows(columns, {"x": values}, 2, 2)


def test_record_refuses_a_dtype_of_equal_size_and_leaves_the_column_alone():
    block = Block(RowLayout(SPACE), MemoryRing(), ModuleRows())
    block.record(0, 4, {"goal": np.arange(4)})
    message = r"output 'goal' to be int64 of shape \[\] per row, as in earlier steps, got float64 of shape \[\] per row"
    with pytest.raises(OutputFormError, match=message):
        block.record(2, 2, {"goal": np.array([0.5, 0.5])})
    assert block.outputs["goal"].dtype == np.int64
    assert block.outputs["goal"][:4].tolist() == [0, 1, 2, 3]


def test_columns_without_copies_where_the_rows_are_a_slice():
    block = filled_block(MemoryRing())
    source = BlockColumns(LaneRows(block, 9, 10, -1, 9))
    assert np.shares_memory(source.rewards(), block.reward_R)
    assert source.rewards().tolist() == list(range(9))
    assert np.shares_memory(source.observations(), block.obs[0])
    assert source.extra_keys() == ("state", "weights_seq_no")
    assert source.extra("state")["h"].shape == (9, 3)
    block.prev_R[9] = 7  # a step that the lane missed
    gaps = BlockColumns(LaneRows(block, 9, 9, -1, 9))
    assert gaps.rewards().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_take_copies_rows_and_outputs():
    pool = MemoryRing()
    block = filled_block(pool)
    copy = Block(block.layout, pool, ModuleRows())
    copy.take(block, np.array([1, 4, 9]))
    assert copy.rows.n == 3
    assert copy.obs[0][:3].tolist() == [[2, 3], [8, 9], [18, 19]]
    assert copy.outputs["actions"][:3].tolist() == [1, 4, 9]
    assert copy.reward_R[:3].tolist() == [1, 4, 9]


@pytest.mark.parametrize("n_chains", [0, 1, 40])
def test_chains_are_those_of_each_lane(rng, n_chains):
    rows, prev_R = random_rows(rng, 300, 7)
    wanted = []
    for lane in rng.integers(7, size=n_chains).tolist():
        indices = rows.indices(lane)
        end = int(rng.integers(1, len(indices) + 1))
        wanted.append(indices[int(rng.integers(end)) : end])
    last_S = np.array([indices[-1] for indices in wanted], np.int64)
    got = _store.chains(prev_R, last_S, np.array([len(indices) for indices in wanted], np.int64))
    assert got.tolist() == [row for indices in wanted for row in indices]


@pytest.mark.parametrize("n_trajectories", [0, 1, 40])
def test_acted_rows_are_all_rows_or_all_but_the_one_without_an_outcome(rng, n_trajectories):
    rows, prev_R = random_rows(rng, 300, 7)
    numbers = np.full((n_trajectories, 5), -77)  # the columns of a table, which are not contiguous
    wanted = []
    for number, lane in zip(numbers, rng.integers(7, size=n_trajectories).tolist(), strict=True):
        indices = rows.indices(lane)[: int(rng.integers(1, 20))]
        indices = indices[int(rng.integers(len(indices))) :]
        has_ended = bool(rng.integers(2))
        number[1:4] = indices[-1], len(indices), 3 if has_ended else -1
        wanted += indices if has_ended else indices[:-1]
    got = _store.acted_rows(prev_R, *numbers.T[1:4])
    assert got.dtype == np.int64 and got.tolist() == wanted

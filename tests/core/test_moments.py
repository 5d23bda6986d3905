"""RunningMeanStd against NumPy over everything at once."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from support.interrupts import in_own_thread, interrupted

import fastmarl
import fastmarl.core.connectors.moments

FILE = fastmarl.core.connectors.moments.__file__


@pytest.mark.parametrize("sizes", [[1], [5, 1, 300], [0, 7]])
def test_update_in_batches_equals_numpy_over_all(rng, sizes):
    batches = [rng.normal(3, 5, (n, 2, 2)).astype(np.float32) for n in sizes]
    moments = fastmarl.RunningMeanStd(4)
    for batch in batches:
        moments.update(batch)
    rows = np.concatenate(batches).reshape(-1, 4).astype(np.float64)
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-9, atol=1e-12)


def test_merged_equals_seen_by_one_and_state_round_trip(rng):
    first, second, both = (fastmarl.RunningMeanStd(3) for _ in range(3))
    for moments, n in ((first, 40), (second, 7)):
        rows = rng.normal(size=(n, 3))
        moments.update(rows)
        both.update(rows)
    first.merge(second)
    restored = fastmarl.RunningMeanStd(3)
    restored.set_state(first.get_state())
    restored.merge(fastmarl.RunningMeanStd(3))
    assert restored.count == both.count == 47
    np.testing.assert_allclose(restored.mean, both.mean, rtol=1e-12)
    np.testing.assert_allclose(restored.var, both.var, rtol=1e-12)


def test_normalizing_in_batches_equals_row_by_row(rng):
    rows = rng.normal(3, 5, (40, 3)).astype(np.float32)
    at_once, one_by_one = fastmarl.RunningMeanStd(3), fastmarl.RunningMeanStd(3)
    out, singly = np.empty((2, 40, 3), np.float32)
    assert at_once.normalize(rows, out) == -1
    for i in range(len(rows)):
        assert one_by_one.normalize(rows[i : i + 1], singly[i : i + 1]) == -1
    np.testing.assert_array_equal(out, singly)
    assert at_once.count == one_by_one.count == 40
    np.testing.assert_allclose(out[-1], (rows[-1] - rows.mean(0)) / rows.std(0), rtol=1e-4)
    copy = at_once.copy()
    assert copy.normalize(rows, singly, update=False, clip=0.5) == -1
    assert (copy.count, copy.mean.tolist()) == (40, at_once.mean.tolist())
    assert np.abs(singly).max() == 0.5


def test_rows_from_the_first_that_is_not_finite_are_not_counted():
    moments = fastmarl.RunningMeanStd(1)
    rows = np.array([[1], [3], [np.nan], [5]], np.float32)
    assert moments.normalize(rows, np.empty((4, 1), np.float32)) == 2
    assert (moments.count, moments.mean.tolist()) == (2, [2])


def test_a_shallow_copy_changes_by_itself(rng):
    rows, moments = rng.normal(size=(5, 2)), fastmarl.RunningMeanStd(2)
    moments.update(rows)
    before = pickle.dumps(moments.get_state())
    for change in ("update", "normalize", "merge"):
        shallow = copy.copy(moments)
        given = {"update": [rows], "normalize": [rows, np.empty((5, 2), np.float32)], "merge": [moments]}
        getattr(shallow, change)(*given[change])
        assert shallow.count == 10 and pickle.dumps(moments.get_state()) == before, change


def test_before_any_row():
    moments = fastmarl.RunningMeanStd(2)
    moments.merge(fastmarl.RunningMeanStd(2))
    assert moments.std.tolist() == [1, 1]


@pytest.mark.parametrize("method", ["update", "normalize", "merge", "set_state"])
@in_own_thread
def test_an_interrupt_leaves_all_three_numbers_or_none(rng, method):
    rows = rng.normal(3, 5, (40, 3)).astype(np.float32)
    other = fastmarl.RunningMeanStd(3)
    other.update(rows)
    begun = other.copy()
    begun.update(rows[:7])
    calls = {
        "update": lambda moments: moments.update(rows),
        "normalize": lambda moments: moments.normalize(rows, np.empty((40, 3), np.float32)),
        "merge": lambda moments: moments.merge(other),
        "set_state": lambda moments: moments.set_state(other.get_state()),
    }
    after = begun.copy()
    calls[method](after)
    states = [pickle.dumps(moments.get_state()) for moments in (begun, after)]
    for opcode in itertools.count():
        moments = begun.copy()
        is_over = not interrupted(lambda: calls[method](moments), file=FILE, at=opcode, event="opcode")  # noqa: B023
        assert pickle.dumps(moments.get_state()) in states, opcode
        if is_over:
            break
    assert opcode > 10

"""RunningMoments against NumPy over everything at once."""

import numpy as np
import pytest

import fastmarl


@pytest.mark.parametrize("sizes", [[1], [5, 1, 300], [0, 7]])
def test_update_in_batches_equals_numpy_over_all(rng, sizes):
    batches = [rng.normal(3, 5, (n, 2, 2)).astype(np.float32) for n in sizes]
    moments = fastmarl.RunningMoments(4)
    for batch in batches:
        moments.update(batch)
    rows = np.concatenate(batches).reshape(-1, 4).astype(np.float64)
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-9, atol=1e-12)


def test_merged_equals_seen_by_one_and_state_round_trip(rng):
    first, second, both = (fastmarl.RunningMoments(3) for _ in range(3))
    for moments, n in ((first, 40), (second, 7)):
        rows = rng.normal(size=(n, 3))
        moments.update(rows)
        both.update(rows)
    first.merge(second)
    restored = fastmarl.RunningMoments(3)
    restored.set_state(first.get_state())
    restored.merge(fastmarl.RunningMoments(3))
    assert restored.count == both.count == 47
    np.testing.assert_allclose(restored.mean, both.mean, rtol=1e-12)
    np.testing.assert_allclose(restored.var, both.var, rtol=1e-12)


def test_before_any_row():
    moments = fastmarl.RunningMoments(2)
    moments.merge(fastmarl.RunningMoments(2))
    assert moments.std.tolist() == [1, 1]

"""Kernels for the steps of many trajectories, against NumPy; none, one and many."""

import numpy as np
import pytest

from fastmarl.core.native import _steps

SIZES = pytest.mark.parametrize("n", [0, 1, 40])


@pytest.fixture
def numbers(rng, n):
    """Rows of an AgentEpisodeTable: row, count, lookback, t_started, final, end_env_t, done, module, source, chunk."""
    table = rng.integers(0, 4, (n, 10))
    table[:, 1] += 4 + table[:, 2]  # rows: more than the lookback
    table[:, 4] -= 2  # some are negative: no final observation
    return table


@SIZES
def test_lengths(numbers):
    expected = numbers[:, 1] - numbers[:, 2] - (numbers[:, 4] < 0)
    assert _steps.lengths(numbers).tolist() == expected.tolist()


@SIZES
def test_with_steps_groups_in_order_of_appearance(rng, numbers):
    length_S = rng.integers(0, 3, len(numbers))
    expected: dict[int, list[int]] = {}
    for s, (value, length) in enumerate(zip(numbers[:, 7].tolist(), length_S.tolist(), strict=True)):
        if length:
            expected.setdefault(value, []).append(s)
    got = _steps.with_steps(numbers[:, 7], length_S)
    assert list(got) == list(expected)
    assert {value: chosen.tolist() for value, chosen in got.items()} == expected


@SIZES
def test_firsts_of_runs(rng, numbers):
    goes_on = np.array([1, 0, 1, 1])
    source_S = np.repeat(numbers[:, 8], 2)[: len(numbers)]
    expected = [s for s, value in enumerate(source_S) if s == 0 or value != source_S[s - 1] or not goes_on[value]]
    assert _steps.firsts_of_runs(source_S, goes_on) == expected


@SIZES
def test_begins_ends_and_ranges(rng, numbers):
    n_S, more_S = numbers[:, 1], numbers[:, 2]
    before = np.cumsum(n_S + more_S) - (n_S + more_S)
    assert _steps.begins(n_S, more_S).tolist() == before.tolist()
    assert _steps.ends(n_S).tolist() == (np.cumsum(n_S) - 1).tolist()
    expected = [step for first, n in zip(before, n_S, strict=True) for step in range(first, first + n)]
    assert _steps.ranges(before, n_S).tolist() == expected


def test_ranges_of_nothing_among_others():
    assert _steps.ranges(np.array([5, 9, -2]), np.array([2, 0, 3])).tolist() == [5, 6, -2, -1, 0]
    with pytest.raises(ValueError, match="-1 steps"):
        _steps.ranges(np.array([5, 9]), np.array([2, -1]))


@SIZES
def test_end_flags(rng, n):
    done_S, n_S = rng.integers(0, 4, n), rng.integers(1, 6, n)
    for flag in (1, 2):
        expected = np.zeros(n_S.sum(), bool)
        expected[np.cumsum(n_S) - 1] = done_S & flag > 0
        got = _steps.end_flags(done_S, n_S, flag)
        assert got.dtype == bool and got.tolist() == expected.tolist()


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000])
def test_packed_is_numpys_packbits(rng, n):
    flags = rng.random(n) < 0.5
    assert _steps.packed(flags).tolist() == np.packbits(flags, bitorder="little").tolist()


def test_packed_takes_any_byte_but_0_for_true():
    flags = np.array([2, 0, 255, 0, 0, 128, 0, 3, 0, 16], np.uint8).view(bool)
    assert _steps.packed(flags).tolist() == np.packbits(flags, bitorder="little").tolist()


@SIZES
@pytest.mark.parametrize("dtype", ["f4", "u1", "i8", "O"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_put_leaves_zeros_elsewhere(rng, n, dtype, shape):
    items = rng.integers(1, 9, (n, *shape)).astype(dtype)
    at = rng.permutation(100)[:n]
    expected = np.zeros((100, *shape), dtype)
    expected[at] = items
    got = _steps.put(items, at, 100)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize(("at", "error"), [([0, 5], IndexError), ([0, -1], IndexError), ([0], ValueError)])
def test_put_refuses_places_that_are_not_there(at, error):
    with pytest.raises(error):
        _steps.put(np.ones(2), np.array(at), 5)


@pytest.mark.parametrize("counts", [[0], [3], [2, 0, 5]])
@pytest.mark.parametrize("shape", [(), (4,)])
def test_joined_is_concatenate(rng, counts, shape):
    columns = [rng.integers(0, 99, (count, *shape)) for count in counts]
    got = _steps.joined(columns)
    assert got.tolist() == np.concatenate(columns).tolist()
    assert not any(np.shares_memory(got, each) for each in columns)


@pytest.mark.parametrize(
    "other", [np.zeros((2, 3)), np.zeros((2, 4), "f4"), np.zeros((4, 8))[:, ::2], np.zeros(2, object)]
)
def test_joined_refuses_arrays_that_it_cannot_copy(other):
    with pytest.raises(ValueError, match="C-contiguous"):
        _steps.joined([np.zeros((2, 4)), other])


def test_joined_refuses_nothing_at_all():
    with pytest.raises(ValueError, match="at least"):
        _steps.joined([])


@SIZES
def test_encoded_has_each_text_once_and_asks_once_for_each_object(rng, n):
    objects = [(0,), (1,), (2,), tuple(range(1, 2))]  # the second and the last one are equal, and have one text
    ids = [objects[i] for i in rng.integers(0, len(objects), n)]
    asked = []
    texts, codes = _steps.encoded(ids, lambda id_: asked.append(id(id_)) or str(id_))
    assert codes.dtype == np.int32
    assert [texts[code] for code in codes] == [str(id_) for id_ in ids]
    assert texts == list(dict.fromkeys(map(str, ids)))
    assert asked == list(dict.fromkeys(map(id, ids)))

"""Every numba kernel against its NumPy reference, compiled and as plain Python."""

import numpy as np
import pytest

from fastmarl.core.kernels.accumulate import accumulate, exponential_mean, sum_spans
from fastmarl.core.kernels.actions import clip_actions, scale_actions
from fastmarl.core.kernels.array_steps import (
    NO_POSITION,
    append_rows,
    count_step,
    end_lanes,
    find_absent,
    settle_step,
)
from fastmarl.core.kernels.frames import former_rows, gather_frames, one_hot_frames
from fastmarl.core.kernels.mean_std import push_rows
from fastmarl.core.kernels.moments import update_moments
from fastmarl.core.kernels.normalize import count_and_normalize
from fastmarl.core.kernels.remap import first_steps, rows_to_lanes
from fastmarl.core.kernels.returns import discounted_sums, gae, n_step_returns, vtrace
from fastmarl.core.kernels.rows import as_bytes, take_finals, take_rows


def versions(kernel):
    return pytest.mark.parametrize("kernel", [kernel, kernel.py_func], ids=["numba", "python"])


def reference(kernel):
    """Return the NumPy version of a kernel, which is in the same file."""
    return getattr(kernel, "py_func", kernel).__globals__[f"{kernel.__name__}_numpy"]


def both(kernel, arguments, written):
    """Return the results of reference and kernel, and the copies of `written` that each has written to."""
    answers = []
    for function in (reference(kernel), kernel):
        copies = [array.copy() for array in written]
        answers.append([function(*arguments, *copies), *copies])
    return answers


def assert_same(answers, **tolerance):
    """Compare bits, or up to a tolerance."""
    (expected, *expected_arrays), (got, *got_arrays) = answers
    assert got == expected
    for expected_array, got_array in zip(expected_arrays, got_arrays, strict=True):
        if tolerance:
            np.testing.assert_allclose(got_array, expected_array, **tolerance)
        else:
            np.testing.assert_array_equal(got_array, expected_array)


@versions(accumulate)
@pytest.mark.parametrize("n", [0, 1, 257])
@pytest.mark.parametrize("n_lookback", [0, 40])
def test_accumulate_matches_numpy(rng, kernel, n, n_lookback):
    n_lanes = 9
    lane_R = rng.integers(0, n_lanes, n).astype(np.int32)
    reward_R = rng.integers(-99, 99, n) / 8.0
    lookback_R = rng.random(min(n, n_lookback)) < 0.5
    row_L = np.full(n_lanes, -1)
    row_L[lane_R] = np.arange(n)
    final_L = np.where(rng.random(n_lanes) < 0.5, 3, -1)
    first_action, end_action = n // 4, n - n // 5
    start = rng.integers(-9, 9, n_lanes) / 8.0, rng.integers(0, 9, n_lanes), rng.integers(0, 9, n_lanes)
    answers = both(kernel, [reward_R, lane_R, lookback_R, first_action, end_action, row_L, final_L], start)
    assert_same(answers)
    if n > 200:
        assert (answers[1][1] != start[0]).any() and (answers[1][3] != start[2]).any()


@versions(sum_spans)
@pytest.mark.parametrize("n_spans", [0, 1, 40])
def test_sum_spans_matches_python(rng, kernel, n_spans):
    values = rng.normal(0, 1e6, 500)
    begin_S, end_S = np.sort(rng.integers(0, 500, (2, n_spans)), axis=0)
    end_S[: n_spans // 4] = begin_S[: n_spans // 4]
    assert_same(both(kernel, [values, begin_S, end_S], [np.full(n_spans, np.nan)]))


@versions(exponential_mean)
@pytest.mark.parametrize("n", [0, 1, 200])
@pytest.mark.parametrize("before", [np.nan, 3.25])
def test_exponential_mean_matches_numpy(rng, kernel, n, before):
    values = np.where(rng.random(n) < 0.2, np.nan, rng.normal(40, 9, n))
    np.testing.assert_array_equal(kernel(before, 0.01, values), reference(kernel)(before, 0.01, values))


@versions(rows_to_lanes)
@pytest.mark.parametrize("n", [0, 1, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_rows_to_lanes_matches_numpy(rng, kernel, n, dtype):
    values_NK = rng.integers(0, 99, (n, 5)).astype(dtype)
    lanes_N = rng.permutation(40)[:n].astype(np.int32)
    answers = both(kernel, [values_NK, lanes_N], [np.full((40, 5), -7, dtype)])
    assert_same(answers)
    assert (answers[1][1] == -7).all(axis=1).sum() == 40 - n  # lanes that are not in the batch were left alone


@versions(first_steps)
@pytest.mark.parametrize("n", [0, 1, 33])
def test_first_steps_match_numpy(rng, kernel, n):
    lanes_N = rng.permutation(40)[:n].astype(np.int32)
    lookback_L = rng.integers(0, 3, 40).astype(np.int32)
    count_L, t_started_L = lookback_L + rng.integers(0, 3, 40).astype(np.int32), rng.integers(0, 2, 40)
    answers = both(kernel, [lanes_N, t_started_L, count_L, lookback_L], [np.full(n, -7, np.int32)])
    assert_same(answers)
    assert n < 9 or 0 < answers[1][0] < n


@pytest.mark.thinned(3)
@versions(push_rows)
@pytest.mark.parametrize("n", [0, 1, 60])
@pytest.mark.parametrize("n_pushes", [0, 1, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "scaling", [(True, True, True, 1.5), (False, True, True, 0.0), (True, False, True, 0.0), (True, True, False, 2.0)]
)
def test_push_rows_matches_numpy(rng, kernel, n, n_pushes, dtype, scaling):
    values, chosen = rng.normal(2, 3, (70, 3)).astype(dtype), rng.permutation(70)[:n]
    values[:9, 0] = np.nan  # which stays, and spoils its own column alone
    start = [*rng.normal(2, 3, (2, 3)), *rng.random((2, 3))]
    answers = []
    for push in (reference(kernel), kernel):
        written = [*(each.copy() for each in start), np.full((70, 3), -7, dtype)]
        answers.append([push(values, chosen, n_pushes, *written, scaling), *written])
    assert_same(answers)
    n_pushed, *got, got_out = answers[1]
    assert n_pushed == n_pushes + n * scaling[0]
    nothing = [each.copy() for each in start]
    kernel(values, chosen, n_pushes, *nothing, got_out[:0], scaling)
    np.testing.assert_array_equal(nothing, got)


@versions(update_moments)
@pytest.mark.parametrize("sizes", [[0], [1], [1, 0, 5], [300, 7]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_update_moments_matches_numpy(rng, kernel, sizes, dtype):
    batches = [rng.normal(50, 9, (n, 3)).astype(dtype) for n in sizes]
    expected, got = [np.zeros(3), np.zeros(3)], [np.zeros(3), np.zeros(3)]
    expected_count = got_count = 0
    for batch in batches:
        expected_count = reference(kernel)(batch, expected_count, *expected)
        got_count = kernel(batch, got_count, *got)
    assert got_count == expected_count == sum(sizes)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-9)
    if sum(sizes):
        everything = np.concatenate(batches).astype(np.float64)
        np.testing.assert_allclose(got[0], everything.mean(0), rtol=1e-12)
        np.testing.assert_allclose(got[1] / got_count, everything.var(0), rtol=1e-6, atol=1e-12)


@versions(discounted_sums)
@pytest.mark.parametrize("n", [0, 1, 2, 57])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gamma", [0.0, 0.9405, 1.0])
def test_discounted_sums_match_numpy(rng, kernel, n, dtype, gamma):
    values = rng.normal(size=n).astype(dtype)
    assert_same(both(kernel, [values, gamma], [np.full(n, np.nan)]), rtol=1e-12, atol=1e-12)


@pytest.mark.thinned(3)
@versions(gae)
@pytest.mark.parametrize("lengths", [[], [0], [1], [5, 0, 1, 40], [300, 7]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("gamma", "lambda_"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)])
def test_gae_matches_numpy(rng, kernel, lengths, dtype, gamma, lambda_):
    length_S, n = np.array(lengths, np.int64), sum(lengths)
    arrays = rng.normal(size=n), rng.normal(size=n).astype(dtype), rng.normal(size=len(lengths)), length_S
    answers = both(kernel, [*arrays, gamma, lambda_], [np.full(n, np.nan)])
    assert_same(answers, rtol=1e-10, atol=1e-10)
    assert not np.isnan(answers[1][1]).any()


@versions(gae)
@pytest.mark.parametrize("lengths", [[], [0], [1], [5, 0, 1, 40]])
@pytest.mark.parametrize("gamma", [0.99, 1.0, 0.0])
def test_gae_without_values_gives_discounted_returns(rng, kernel, lengths, gamma):
    length_S, n = np.array(lengths, np.int64), sum(lengths)
    reward_N, last_S, got = rng.normal(9, 1, n), rng.normal(size=len(lengths)), np.full(n, np.nan, np.float32)
    kernel(reward_N, np.zeros(n), last_S, length_S, gamma, 1.0, got)
    want, end = [], 0
    for length, last in zip(lengths, last_S, strict=True):
        rewards = np.append(reward_N[end : end + length], last)
        want += [gamma ** np.arange(length + 1 - i) @ rewards[i:] for i in range(length)]
        end += length
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.thinned(3)
@versions(vtrace)
@pytest.mark.parametrize("lengths", [[], [0], [1], [5, 0, 1, 40]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factors", [(0.99, 1.0, 1.0, 1.0), (0.9, 0.8, 2.0, 0.5), (0.0, 0.5, 1.0, 1.0)])
def test_vtrace_matches_numpy(rng, kernel, lengths, dtype, factors):
    length_S, n = np.array(lengths, np.int64), sum(lengths)
    ratio_N = np.exp(rng.normal(size=n))
    arrays = rng.normal(size=n), rng.normal(size=n).astype(dtype), rng.normal(size=len(lengths)), length_S, ratio_N
    answers = both(kernel, [*arrays, *factors], np.full((2, n), np.nan))
    assert_same(answers, rtol=1e-10, atol=1e-10)
    assert not np.isnan(answers[1][1:]).any()


@pytest.mark.thinned(3)
@versions(n_step_returns)
@pytest.mark.parametrize("lengths", [[], [0], [1], [5, 0, 1, 40]])
@pytest.mark.parametrize("n_step", [1, 3, 100])
@pytest.mark.parametrize("gamma", [0.99, 1.0, 0.0])
def test_n_step_returns_match_numpy(rng, kernel, lengths, n_step, gamma):
    length_S, n = np.array(lengths, np.int64), sum(lengths)
    arrays = rng.normal(size=n), rng.normal(size=n).astype(np.float32), rng.normal(size=len(lengths)), length_S
    answers = both(kernel, [*arrays, n_step, gamma], [np.full(n, np.nan)])
    assert_same(answers, rtol=1e-10, atol=1e-10)
    assert not np.isnan(answers[1][1]).any()


def within_bounds(kernel, raw, low, high):
    actions = np.full(raw.shape, -99, low.dtype)
    kernel(raw, low, high, actions)
    return actions


@versions(scale_actions)
@pytest.mark.parametrize(("n", "k"), [(0, 2), (1, 1), (300, 5)])
@pytest.mark.parametrize("raw_dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scale_actions_matches_numpy_exactly(rng, kernel, n, k, raw_dtype, dtype):
    raw = np.clip(rng.normal(size=(n, k)), -1.2, 1.2).astype(raw_dtype)
    low = (rng.normal(size=k) * 10.0 ** rng.integers(-3, 4, k)).astype(dtype)
    high = low + rng.random(k).astype(dtype)
    expected, got = (within_bounds(each, raw, low, high) for each in (reference(kernel), kernel))
    assert got.tobytes() == expected.tobytes()
    assert (got >= low).all() and (got <= high).all()


@versions(clip_actions)
@pytest.mark.parametrize(("n", "k"), [(0, 2), (1, 1), (300, 5)])
@pytest.mark.parametrize("raw_dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clip_actions_matches_numpy_exactly(rng, kernel, n, k, raw_dtype, dtype):
    raw = rng.normal(size=(n, k)).astype(raw_dtype)
    low = np.where(np.arange(k) % 2, -np.inf, -0.3).astype(dtype)
    high = np.where(np.arange(k) % 3, np.inf, 0.7).astype(dtype)
    expected, got = (within_bounds(each, raw, low, high) for each in (reference(kernel), kernel))
    assert got.tobytes() == expected.tobytes()
    if n > 1:
        assert (got == low).any() and (got == high).any() and (got == raw.astype(dtype)).any()


@versions(scale_actions)
def test_scaled_actions_at_and_beyond_the_bounds(kernel):
    raw = np.array([[-1, 1], [-9, 9], [-np.inf, np.inf], [np.nan, 0]], np.float32)
    scaled = within_bounds(kernel, raw, np.zeros(2, np.float32), np.full(2, 3, np.float32))
    np.testing.assert_array_equal(scaled, [[0, 3], [0, 3], [0, 3], [np.nan, 1.5]])


@versions(clip_actions)
def test_clipped_actions_beyond_the_bounds(kernel):
    raw = np.array([[-9, 9], [-np.inf, np.inf], [np.nan, 0.5]])
    clipped = within_bounds(kernel, raw, np.zeros(2), np.array([3, np.inf]))
    np.testing.assert_array_equal(clipped, [[0, 9], [0, np.inf], [np.nan, 0.5]])


def a_step(rng, agents, n_envs):
    """Arguments of settle_step(), but for what it writes to."""
    n, n_lanes = agents * n_envs, 2 * agents * n_envs + 1
    lane_P = np.where(rng.random(n) < 0.8, rng.permutation(n_lanes)[:n], -1).astype(np.int32)
    flags = (rng.random((3, n)) < [[0.2], [0.2], [0.7]]).astype(np.bool_)
    reward_P = rng.integers(-9, 9, n) / 8.0
    reward_P[lane_P < 0] = np.nan  # belongs to no agent
    all_done_E = np.where(rng.random(n_envs) < 0.3, rng.integers(1, 4, n_envs), 0).astype(np.uint8)
    module_L = rng.integers(0, 2, n_lanes).astype(np.int32)
    row_L = np.where(rng.random(n_lanes) < 0.9, rng.permutation(n_lanes), -1)
    return (1, lane_P, reward_P, *flags, all_done_E, module_L, row_L)


@versions(settle_step)
@pytest.mark.parametrize(("agents", "n_envs"), [(1, 0), (1, 1), (3, 401)])
def test_settle_step_matches_numpy(rng, kernel, agents, n_envs):
    step = a_step(rng, agents, n_envs)
    n, n_lanes = agents * n_envs, len(step[-1])
    answers = []
    for settle in (reference(kernel), kernel):
        done_L, final_L, reward_R = np.zeros(n_lanes, np.uint8), np.full(n_lanes, -1), np.full(n_lanes, 0.5)
        kept, ended = np.full((2, n), -7)
        n_kept, n_ended, bad = settle(*step, done_L, final_L, reward_R, 10, kept, ended)
        assert bad == NO_POSITION
        answers.append([done_L, final_L, reward_R, kept[:n_kept], ended[:n_ended]])
        assert (kept[n_kept:] == -7).all() and (ended[n_ended:] == -7).all()
    for expected, got in zip(*answers, strict=True):
        np.testing.assert_array_equal(got, expected)
    if n > 100:
        assert len(answers[0][3]) > 5 and len(answers[0][4]) > 5 and (answers[0][2] != 0.5).any()


@versions(settle_step)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_settle_step_names_the_first_bad_reward(kernel, bad):
    module_L, row_L = np.array([0, 0, 0, 1], np.int32), np.arange(4)
    rewards = np.array([bad, 1.0, bad, bad])  # of the other module, fine, bad, bad
    arguments = 0, np.array([3, 0, 1, 2], np.int32), rewards, *np.zeros((3, 4), np.bool_), np.zeros(2, np.uint8)
    written = np.zeros(4, np.uint8), np.full(4, -1), np.zeros(4), 0, *np.zeros((2, 4), np.int64)
    assert kernel(*arguments, module_L, row_L, *written)[2] == 2


@versions(append_rows)
@pytest.mark.parametrize("n", [0, 1, 33])
def test_append_rows_matches_numpy(rng, kernel, n):
    lane_P = rng.permutation(60)[:40].astype(np.int32)
    places = np.append(np.sort(rng.permutation(40)[:n]), -99)
    env_t_E = rng.integers(0, 99, 10).astype(np.int32)
    row_L, count_L = rng.integers(0, 9, 60), rng.integers(1, 9, 60).astype(np.int32)
    answers = []
    for append in (reference(kernel), kernel):
        columns = [np.full(50, -7, dtype) for dtype in (np.int32, np.int64, np.int32, np.float64)]
        of_lanes = [row_L.copy(), count_L.copy()]
        append(places, n, lane_P, 4, env_t_E, 5, *columns, *of_lanes)
        answers.append([*columns, *of_lanes])
        assert all((column[:5] == -7).all() and (column[5 + n :] == -7).all() for column in columns)
    for expected, got in zip(*answers, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert (answers[0][4] != row_L).sum() >= n - 5


@versions(count_step)
@pytest.mark.parametrize("n", [0, 1, 40])
def test_count_step_matches_numpy(rng, kernel, n):
    flags = rng.random((2, n)) < 0.5
    written = np.arange(n, dtype=np.int32), np.full(n, 99, np.uint8), np.full(n, -7)
    assert_same(both(kernel, [*flags], written))


@versions(find_absent)
@pytest.mark.parametrize("n", [0, 1, 40])
def test_find_absent_matches_numpy(rng, kernel, n):
    lane_P = rng.integers(-1, 1, n).astype(np.int32)
    rewards = rng.integers(0, 2, n) * rng.choice([0.5, np.nan], n)
    answers = both(kernel, [lane_P, rewards, rng.random(n) < 0.5], np.full((2, n), -7))
    assert_same(answers)
    assert n < 40 or min(answers[0][0]) > 0


@versions(end_lanes)
@pytest.mark.parametrize("n", [0, 1, 12])
def test_end_lanes_matches_numpy(rng, kernel, n):
    ended = np.append(np.sort(rng.permutation(40)[:n]), -99)
    written = rng.permutation(60)[:40].astype(np.int32), rng.permutation(60), *np.full((2, 20), -7)
    arguments = [ended, n, 4, rng.random(40) < 0.5]
    scratch = np.full(n + 1, -7, np.int32), np.full(n + 1, -7)

    answers = []
    for end in (reference(kernel), kernel):
        copies = [array.copy() for array in (*written, *scratch)]
        answers.append([end(*arguments, *copies[:2], 17, 5, *copies[2:]), *copies])
    assert_same(answers)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.bool_, np.int64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_rows_are_the_same_memory_as_bytes(dtype, shape):
    array = np.ones((5, *shape), dtype)
    rows = as_bytes(array)
    assert rows.shape == (5, array[0].nbytes) and rows.dtype == np.uint8
    rows[...] = 0
    assert not array.any()
    assert as_bytes(array[:0]).shape == (0, array[0].nbytes)


@versions(take_rows)
@pytest.mark.parametrize("n", [0, 1, 33])
def test_take_rows_matches_numpy_also_in_place(rng, kernel, n):
    places = np.append(np.sort(rng.permutation(40)[:n]), -99)
    source, out = rng.integers(0, 9, (40, 6), np.uint8), np.full((50, 6), 7, np.uint8)
    assert_same(both(kernel, [source, places, n, 5], [out]))
    expected = source.copy()
    reference(kernel)(source, places, n, 0, expected)
    kernel(source, places, n, 0, source)
    np.testing.assert_array_equal(source, expected)


@versions(take_finals)
@pytest.mark.parametrize("n", [0, 1, 12])
def test_take_finals_matches_numpy(rng, kernel, n):
    ended = np.append(np.sort(rng.permutation(40)[:n]), -99)
    sent, rows = rng.integers(0, 9, (40, 6), np.uint8), rng.integers(10, 19, (50, 6), np.uint8)
    arguments = [sent, rows, ended, n, rng.random(40) < 0.5, rng.integers(0, 50, 20), 5]
    answers = both(kernel, arguments, [np.full((20, 6), 99, np.uint8)])
    assert_same(answers)
    assert ((answers[0][1] != 99).all(1)).sum() == n


@pytest.mark.thinned(3)
@versions(count_and_normalize)
@pytest.mark.parametrize("n", [0, 1, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("options", [(1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0)])
@pytest.mark.parametrize("count", [0, 9])
def test_count_and_normalize_matches_numpy(rng, kernel, n, dtype, options, count):
    values_NK = rng.uniform(0, 200, (n, 3)).astype(dtype)
    start = (rng.normal(size=3), rng.uniform(9, 99, 3)) if count else (np.zeros(3), np.zeros(3))
    expected, got = ([*(a.copy() for a in start), np.full((n, 3), -7, np.float32)] for _ in range(2))
    counts, demean, destd = map(bool, options)
    assert reference(kernel)(values_NK, count, *expected[:2], counts, demean, destd, 1.5, expected[2]) == -1
    assert kernel(values_NK, count, *got[:2], counts, demean, destd, 1.5, got[2]) == -1
    for expected_array, got_array in zip(expected, got, strict=True):
        np.testing.assert_allclose(got_array, expected_array, rtol=1e-6, atol=1e-9)
    assert (got[2] != -7).all()
    assert counts or all((a == b).all() for a, b in zip(got, start, strict=False))


@versions(count_and_normalize)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_count_and_normalize_stops_before_values_that_are_not_finite(kernel, bad):
    values_NK = np.array([[1, 2], [3, 4], [5, bad], [7, 8]], np.float32)
    mean_K, m2_K, out_NK = np.zeros(2), np.zeros(2), np.full((4, 2), -7, np.float32)
    assert kernel(values_NK, 0, mean_K, m2_K, True, True, True, np.inf, out_NK) == 2
    assert (mean_K.tolist(), m2_K.tolist()) == ([2, 3], [2, 2])
    assert (out_NK[2:] == -7).all() and (out_NK[:2] != -7).all()


def chains(rng, n):
    """Rows of a few lanes, with holes: each row's former row, or -1."""
    lane_R = rng.integers(0, 4, n)
    prev_R = np.full(n, -1)
    for lane in range(4):
        rows = np.flatnonzero(lane_R == lane)
        prev_R[rows[1:]] = rows[:-1]
    return prev_R


@versions(former_rows)
@pytest.mark.parametrize("n", [0, 1, 30])
@pytest.mark.parametrize("n_frames", [0, 1, 5])
def test_former_rows_match_numpy(rng, kernel, n, n_frames):
    prev_R = chains(rng, 50)
    last_N = rng.integers(-1, 50, n)
    answers = both(kernel, [last_N, prev_R], [np.full((n, n_frames), -9)])
    assert_same(answers)
    assert (answers[1][1] != -9).all()


@versions(gather_frames)
@pytest.mark.parametrize("n", [0, 1, 30])
@pytest.mark.parametrize("shape", [(1, 7), (6, 1), (4, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_stack_frames_matches_numpy(rng, kernel, n, shape, dtype):
    values_RPC = rng.integers(1, 99, (50, *shape)).astype(dtype)
    rows_NF = rng.integers(-1, 50, (n, 4))
    points, channels = shape
    answers = both(kernel, [values_RPC, rows_NF], [np.full((n, points, 4, channels), 111, dtype)])
    assert_same(answers)
    assert (answers[1][1] != 111).all()


@versions(one_hot_frames)
@pytest.mark.parametrize("n", [0, 1, 30])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
def test_one_hot_frames_match_numpy(rng, kernel, n, dtype):
    choices_K = np.array([3, 1, 4])
    values_RK = rng.integers(-1, choices_K + 1, (50, 3)).astype(dtype)  # some out of range
    rows_NF = rng.integers(-1, 50, (n, 2))
    answers = both(kernel, [values_RK, rows_NF, choices_K], [np.full((n, 2, 8), 111, np.float32)])
    assert_same(answers)
    assert n < 30 or set(np.unique(answers[1][1])) == {0, 1}

"""The kernels between torch's calls, against NumPy; that the whole equals RLlib's is in test_rllib_inference.py."""

import numpy as np
import pytest
import torch

from fastmarl.core.native._rllib_sampling import first_to_ring, move, subtract_highest, subtract_sums, sum_rows
from fastmarl.rllib.inference.draws_cpu import SUMMED_IN_ORDER

SIZES = pytest.mark.parametrize(("n", "k"), [(0, 3), (1, 1), (1, 2), (257, 5)])


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def poisoned(*shape):
    return np.full(shape, np.nan, np.float32)


@SIZES
def test_subtract_highest(rng, n, k):
    logits, shifted, highest = normal(rng, n, k), poisoned(n, k), poisoned(n)
    subtract_highest(logits, shifted, highest)
    assert np.array_equal(highest, logits.max(1))
    assert np.array_equal(shifted, logits - logits.max(1, keepdims=True))


@SIZES
def test_sum_rows(rng, n, k):
    values, sums = normal(rng, n, k), poisoned(n, 1)
    sum_rows(values, sums)
    assert np.array_equal(sums, np.cumsum(values, 1, dtype=np.float32)[:, -1:])


@pytest.mark.parametrize("k", range(1, SUMMED_IN_ORDER + 1))
def test_torch_sums_few_in_order(rng, k):
    values, sums = 1e3 * normal(rng, 5000, k), poisoned(5000, 1)
    sum_rows(values, sums)
    assert np.array_equal(sums, torch.from_numpy(values).sum(-1, True).numpy())


@SIZES
def test_subtract_sums(rng, n, k):
    logits, log_sum, highest, log_p = normal(rng, n, k), normal(rng, n, 1), normal(rng, n), poisoned(n, k)
    subtract_sums(logits, log_sum, highest, log_p)
    assert np.array_equal(log_p, logits - (log_sum + highest[:, None]))


@SIZES
def test_first_to_ring(rng, n, k):
    p, clock, log_p = abs(normal(rng, n, k)), abs(normal(rng, n, k)), normal(rng, n, k)
    p[: n // 2] = p[: n // 2, :1] = clock[: n // 2] = 1  # of equals, the first
    action, logp = np.full(n, -1, np.int32), poisoned(n)
    first_to_ring(p, clock, log_p, action, logp)
    want = (p / clock).argmax(1)
    assert np.array_equal(action, want)
    assert np.array_equal(logp, log_p[np.arange(n), want])


@SIZES
def test_move(rng, n, k):
    logits, std, log_std, noise = normal(rng, n, 2 * k), abs(normal(rng, n, k)), normal(rng, n, k), normal(rng, n, k)
    action, term = poisoned(n, k), poisoned(n, k)
    move(logits, std, log_std, noise, 0.9, action, term)
    mean = logits[:, :k]
    assert np.array_equal(action, noise * std + mean)
    want = -((action - mean) ** 2) / (np.float32(2) * std**2) - log_std - np.float32(0.9)
    assert np.array_equal(term, want)


@pytest.mark.parametrize("logits", [np.zeros((3, 2)), np.zeros((2, 3), np.float32).T, np.zeros((3, 3), np.float32)])
def test_arrays_that_do_not_fit(logits):
    with pytest.raises(ValueError, match=r"expected [69] float32 numbers"):
        subtract_highest(logits, poisoned(3, 2), poisoned(3))

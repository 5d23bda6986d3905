"""The numba kernels and their NumPy references."""

import numpy as np
import pytest

from fastmarl.core.kernels.accumulate import accumulate, accumulate_numpy, sum_spans, sum_spans_numpy
from fastmarl.core.kernels.remap import rows_to_lanes, rows_to_lanes_numpy


@pytest.mark.benchmark(group="accumulate 64k rows of 512 lanes")
@pytest.mark.parametrize("kernel", [accumulate, accumulate_numpy], ids=["numba", "numpy"])
def bench_accumulate(benchmark, kernel):
    n, n_lanes = 65_536, 512
    reward_R = np.ones(n)
    lane_R = (np.arange(n) % n_lanes).astype(np.int32)
    row_L, final_L = np.full(n_lanes, n - 1), np.full(n_lanes, -1)
    sums = np.zeros(n_lanes), np.zeros(n_lanes, np.int64), np.zeros(n_lanes, np.int64)
    benchmark(kernel, reward_R, lane_R, np.zeros(0, np.bool_), 0, n, row_L, final_L, *sums)
    assert sums[2].sum() >= n


@pytest.mark.benchmark(group="sums of 64 spans of 1,000")
@pytest.mark.parametrize("kernel", [sum_spans, sum_spans_numpy], ids=["numba", "numpy"])
def bench_sum_spans(benchmark, kernel):
    begin_S = np.arange(64) * 1000
    sums = np.zeros(64)
    benchmark(kernel, np.ones(64_000), begin_S, begin_S + 1000, sums)
    assert (sums == 1000).all()


@pytest.mark.benchmark(group="state of 512 rows, 128 floats")
@pytest.mark.parametrize("kernel", [rows_to_lanes, rows_to_lanes_numpy], ids=["numba", "numpy"])
def bench_rows_to_lanes(benchmark, kernel):
    lanes_N = np.random.default_rng(0).permutation(1024)[:512].astype(np.int32)
    rows, lanes = np.ones((512, 128), np.float32), np.ones((1024, 128), np.float32)
    benchmark(kernel, rows, lanes_N, lanes)
    assert lanes.sum() > 0

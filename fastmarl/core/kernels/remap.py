"""Mapping of module outputs and states between rows of a batch and lanes."""

from numba import njit


def rows_to_lanes_numpy(values_NK, lanes_N, values_LK):
    """NumPy reference for rows_to_lanes()."""
    values_LK[lanes_N] = values_NK


@njit(cache=True, nogil=True)
def rows_to_lanes(values_NK, lanes_N, values_LK):
    """Write row i of a batch to lane lanes_N[i].

    Args:
        values_NK: [n, k], any dtype, C-contiguous.
        lanes_N: int32 [n], each lane at most once.
        values_LK: [n_lanes, k], same dtype, out; other lanes are unchanged.
    """
    for i in range(len(lanes_N)):
        lane = lanes_N[i]
        for k in range(values_NK.shape[1]):
            values_LK[lane, k] = values_NK[i, k]


def first_steps_numpy(lanes_N, t_started_L, count_L, lookback_L, out_N):
    """NumPy reference for first_steps()."""
    begun = lanes_N[t_started_L[lanes_N] + count_L[lanes_N] - lookback_L[lanes_N] == 1]
    out_N[: len(begun)] = begun
    return len(begun)


@njit(cache=True, nogil=True)
def first_steps(lanes_N, t_started_L, count_L, lookback_L, out_N):
    """Find the lanes whose agents take their first step next.

    Args:
        lanes_N: int32 [n].
        t_started_L: int64 [n_lanes], agent steps before the chunk.
        count_L, lookback_L: int32 [n_lanes], rows in the chunk including lookback, and rows of the lookback.
        out_N: int32 [n], out: these lanes, in order.

    Returns:
        The number of these lanes.
    """
    n = 0
    for i in range(len(lanes_N)):
        lane = lanes_N[i]
        if t_started_L[lane] + count_L[lane] - lookback_L[lane] == 1:
            out_N[n] = lane
            n += 1
    return n

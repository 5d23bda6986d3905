"""Module outputs and states from the rows of a batch to the lanes they belong to."""

from numba import njit


def rows_to_lanes_numpy(values_NK, lanes_N, values_LK):
    """Reference for rows_to_lanes()."""
    values_LK[lanes_N] = values_NK


@njit(cache=True, nogil=True)
def rows_to_lanes(values_NK, lanes_N, values_LK):
    """Write row i of a batch to lane lanes_N[i].

    Args:
        values_NK: [n, k], any dtype, C-contiguous.
        lanes_N: int32 [n], each lane at most once.
        values_LK: [n_lanes, k], same dtype; other lanes stay as they are.
    """
    for i in range(len(lanes_N)):
        lane = lanes_N[i]
        for k in range(values_NK.shape[1]):
            values_LK[lane, k] = values_NK[i, k]

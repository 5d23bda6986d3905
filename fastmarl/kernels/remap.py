"""Module outputs and states between the rows of a batch and the lanes they belong to."""

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


def lanes_to_rows_numpy(values_LK, lanes_N, values_NK):
    """Reference for lanes_to_rows()."""
    values_NK[:] = values_LK[lanes_N]


@njit(cache=True, nogil=True)
def lanes_to_rows(values_LK, lanes_N, values_NK):
    """Read lane lanes_N[i] into row i of a batch: the reverse of rows_to_lanes(); every row is written."""
    for i in range(len(lanes_N)):
        lane = lanes_N[i]
        for k in range(values_NK.shape[1]):
            values_NK[i, k] = values_LK[lane, k]

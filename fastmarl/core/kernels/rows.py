"""Compiled functions that copy rows of any dtype and shape as bytes.

Axes in names: P position in the group arrays, env * (number of agents) + agent; L lane, R row, F final observation, B
byte.
"""

import math

import numpy as np
from numba import njit


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return the memory of an array [n, ...], C-contiguous and without objects, as uint8 [n, bytes per row]."""
    row_bytes = array.itemsize * math.prod(array.shape[1:])
    return array.reshape(-1).view(np.uint8).reshape(len(array), row_bytes)


def take_rows_numpy(source_PB, positions, n, first, out_RB):
    """NumPy reference for take_rows()."""
    out_RB[first : first + n] = source_PB[positions[:n]]


@njit(cache=True, nogil=True)
def take_rows(source_PB, positions, n, first, out_RB):
    """Copy the rows at `positions` to rows first:first + n of `out_RB`.

    Args:
        source_PB: uint8 [P, B].
        positions: int64 [>= n].
        n, first: ints.
        out_RB: uint8 [R, B], out.
    """
    for i in range(n):
        position = positions[i]
        for b in range(out_RB.shape[1]):
            out_RB[first + i, b] = source_PB[position, b]


def take_finals_numpy(source_PB, row_RB, ended, n, present_P, prev_F, first, out_FB):
    """NumPy reference for take_finals()."""
    for i, position in enumerate(ended[:n]):
        out_FB[first + i] = source_PB[position] if present_P[position] else row_RB[prev_F[first + i]]


@njit(cache=True, nogil=True)
def take_finals(source_PB, row_RB, ended, n, present_P, prev_F, first, out_FB):
    """Copy the last observation of each ending lane: the current one or, if there is none, the previous one again.

    Args:
        source_PB: uint8 [P, B], current observations.
        row_RB: uint8 [R, B], rows of the block.
        ended: int64 [>= n], positions of the lanes.
        n, first: ints; finals first:first + n are written.
        present_P: bool, True if there is a current observation.
        prev_F: int64, last row of the lane of each final.
        out_FB: uint8 [F, B], out.
    """
    for i in range(n):
        position, row = ended[i], prev_F[first + i]
        if present_P[position]:
            for b in range(out_FB.shape[1]):
                out_FB[first + i, b] = source_PB[position, b]
        else:
            for b in range(out_FB.shape[1]):
                out_FB[first + i, b] = row_RB[row, b]

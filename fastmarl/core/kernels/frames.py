"""Previous rows of lanes in a block, and stacks of their values."""

import numpy as np
from numba import njit


def as_compiled(array: np.ndarray) -> np.ndarray:
    """Return `array`, viewed as unsigned integers if it is float16 or longdouble, which numba does not support."""
    if array.dtype.kind != "f" or array.dtype.itemsize in (4, 8):
        return array
    return array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint64)


def former_rows_numpy(last_N, prev_R, out_NF):
    """NumPy reference for former_rows()."""
    out_NF[:] = -1
    for i, row in enumerate(last_N):
        for f in range(out_NF.shape[1] - 1, -1, -1):
            if row < 0:
                break
            out_NF[i, f] = row
            row = prev_R[row]


@njit(cache=True, nogil=True)
def former_rows(last_N, prev_R, out_NF):
    """Follow the chain of previous rows from each row of `last_N`.

    Args:
        last_N: int64 [n]; -1 for no row.
        prev_R: int64, previous row of the same lane for each row, or -1.
        out_NF: int64 [n, f], out: the last f rows of each chain in order; -1 where it is shorter.
    """
    for i in range(len(last_N)):
        row = last_N[i]
        for f in range(out_NF.shape[1] - 1, -1, -1):
            out_NF[i, f] = row
            if row >= 0:
                row = prev_R[row]


def gather_frames_numpy(values_RPC, rows_NF, out_NPFC):
    """NumPy reference for gather_frames()."""
    frames = np.where((rows_NF >= 0)[:, :, None, None], values_RPC[rows_NF], 0)
    out_NPFC[:] = frames.swapaxes(1, 2)


@njit(cache=True, nogil=True)
def gather_frames(values_RPC, rows_NF, out_NPFC):
    """Gather frames into stacks, with the frame axis before the channel axis.

    Args:
        values_RPC: [rows, p, c], any dtype: frames of p points with c channels.
        rows_NF: int64 [n, f], rows of the frames in each stack; -1 yields a frame of zeros.
        out_NPFC: [n, p, f, c], any dtype, out; values are converted to its dtype.
    """
    for i in range(len(rows_NF)):
        for f in range(rows_NF.shape[1]):
            row = rows_NF[i, f]
            for p in range(values_RPC.shape[1]):
                for c in range(values_RPC.shape[2]):
                    out_NPFC[i, p, f, c] = values_RPC[row, p, c] if row >= 0 else 0


def one_hot_frames_numpy(values_RK, rows_NF, choices_K, out_NFC):
    """NumPy reference for one_hot_frames()."""
    out_NFC[:] = 0
    for (i, f), row in np.ndenumerate(rows_NF):
        for k, begin in enumerate(np.cumsum(choices_K) - choices_K):
            if row >= 0 and 0 <= values_RK[row, k] < choices_K[k]:
                out_NFC[i, f, begin + int(values_RK[row, k])] = 1


@njit(cache=True, nogil=True)
def one_hot_frames(values_RK, rows_NF, choices_K, out_NFC):
    """Write integers as one-hot vectors; the vectors of a row are concatenated.

    Args:
        values_RK: [rows, k], integers; those out of range become vectors of zeros.
        rows_NF: int64 [n, f]; -1 yields zeros.
        choices_K: int64 [k], number of possible values of each integer.
        out_NFC: [n, f, sum of choices_K], out.
    """
    for i in range(len(rows_NF)):
        for f in range(rows_NF.shape[1]):
            for c in range(out_NFC.shape[2]):
                out_NFC[i, f, c] = 0
            row = rows_NF[i, f]
            begin = 0
            for k in range(len(choices_K)):
                if row >= 0 and 0 <= values_RK[row, k] < choices_K[k]:
                    out_NFC[i, f, begin + int(values_RK[row, k])] = 1
                begin += choices_K[k]

"""Normalisation of rows one by one, using running moments that include the row itself.

Welford (1962), "Note on a method for calculating corrected sums of squares and products".
"""

import numpy as np
from numba import njit

EPSILON = 1e-8  # added to standard deviations


def count_and_normalize_numpy(values_NK, count, mean_K, m2_K, counts, demean, destd, clip, out_NK):
    """NumPy reference for count_and_normalize()."""
    for i, row in enumerate(values_NK.astype(np.float64)):
        if not np.isfinite(row).all():
            return i
        if counts:
            delta = row - mean_K
            mean_K += delta / (count + i + 1)
            m2_K += delta * (row - mean_K)
        seen = count + i + 1 if counts else count
        if demean:
            row = row - mean_K
        if destd and seen:
            row = row / (np.sqrt(m2_K / seen) + EPSILON)
        out_NK[i] = np.clip(row, -clip, clip)
    return -1


@njit(cache=True, nogil=True)
def count_and_normalize(values_NK, count, mean_K, m2_K, counts, demean, destd, clip, out_NK):
    """Add each row to the moments, then write (row - mean) / std, with the updated moments, to `out_NK`.

    Args:
        values_NK: [n, k] of any real dtype.
        count: int, rows seen before; if it is 0 and `counts` is False, the standard deviation is taken to be 1.
        mean_K, m2_K: float64 [k], mean and sum of squared deviations of rows seen; updated in place if `counts`.
        counts: True to add the rows; otherwise the moments remain unchanged.
        demean, destd: True to subtract the mean, and to divide by the standard deviation.
        clip: float64; results are clipped to [-clip, clip].
        out_NK: float32 [n, k], out.

    Returns:
        -1, or the first row with a non-finite number; this row and all later ones were neither added nor written.
    """
    seen = count
    for i in range(len(values_NK)):
        if not _is_finite(values_NK[i]):
            return i
        if counts:
            seen += 1
            _count(values_NK[i], 1.0 / seen, mean_K, m2_K)
        share = 1.0 / max(seen, 1)
        for k in range(values_NK.shape[1]):
            value = np.float64(values_NK[i, k])
            if demean:
                value -= mean_K[k]
            if destd and seen > 0:
                value /= np.sqrt(m2_K[k] * share) + EPSILON
            out_NK[i, k] = min(max(value, -clip), clip)
    return -1


@njit(cache=True, nogil=True)
def _is_finite(row_K):
    total = 0.0
    for k in range(len(row_K)):
        total += np.float64(row_K[k]) * 0.0  # 0 times NaN or infinity is NaN; faster than testing each number
    return total == 0.0


@njit(cache=True, nogil=True)
def _count(row_K, share, mean_K, m2_K):
    """Add a row to the moments; `share` is its fraction of all rows."""
    for k in range(len(row_K)):
        value = np.float64(row_K[k])
        delta = value - mean_K[k]
        mean_K[k] += delta * share
        m2_K[k] += delta * (value - mean_K[k])

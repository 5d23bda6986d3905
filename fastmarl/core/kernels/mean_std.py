"""Running means and deviations, with the arithmetic of RLlib's MeanStdFilter.

Welford (1962), "Note on a method for calculating corrected sums of squares and products". Observations are added one
by one, so that results are bit-identical to RLlib. fastmarl's own statistics are merged in batches, see moments.py.
"""

import numpy as np
from numba import njit

SMALL = np.float32(1e-6)  # added to deviations


def push_rows_numpy(values_NK, chosen, n_pushes, mean_K, delta_K, squares_K, delta_squares_K, out_NK, scaling):
    """NumPy reference for push_rows()."""
    updates, demean, scale, bound = scaling
    for row in chosen:
        values = values_NK[row].astype(np.float64)
        if updates:
            n_pushes += 1
            if n_pushes == 1:
                mean_K[:] = delta_K[:] = values
            else:
                difference = values - mean_K
                mean_K += difference / n_pushes
                delta_K += difference / n_pushes
                squares_K += difference * (values - mean_K)
                delta_squares_K += difference * (values - mean_K)
        if len(out_NK):
            if demean:
                values = values - mean_K
            if scale:
                variance = (squares_K / max(n_pushes - 1, 1)).astype(np.float32) * np.float32(n_pushes > 1)
                values = values / (np.sqrt(np.maximum(variance, np.float32(0))) + SMALL)
            out_NK[row] = np.clip(values, -bound, bound) if bound else values
    return n_pushes


@njit(cache=True, nogil=True)
def push_rows(values_NK, chosen, n_pushes, mean_K, delta_K, squares_K, delta_squares_K, out_NK, scaling):
    """Add rows to statistics one by one, and write each row scaled by the statistics up to that row.

    Args:
        values_NK: float [n, k].
        chosen: int64, rows to use, in order.
        n_pushes: Number of rows added before.
        mean_K, delta_K: float64 [k], means, overall and since the last merge with statistics of other runners.
        squares_K, delta_squares_K: float64 [k], sums of squared differences from the mean, likewise.
        out_NK: [n, k] with the dtype of the values, out, or [0, k] to write nothing.
        scaling: (add rows, subtract the mean, divide by the deviation, bound of outputs or 0); three bools, one float.

    Returns:
        The total number of rows added, including earlier calls.
    """
    updates, demean, scale, bound = scaling
    for row in chosen:
        if updates:
            n_pushes += 1
        for k in range(values_NK.shape[1]):
            value = np.float64(values_NK[row, k])
            if updates:
                if n_pushes == 1:
                    mean_K[k] = value
                    delta_K[k] = value
                else:
                    difference = value - mean_K[k]
                    mean_K[k] += difference / n_pushes
                    delta_K[k] += difference / n_pushes
                    squares_K[k] += difference * (value - mean_K[k])
                    delta_squares_K[k] += difference * (value - mean_K[k])
            if len(out_NK) == 0:
                continue
            if demean:
                value -= mean_K[k]
            if scale:
                variance = np.float32(squares_K[k] / (n_pushes - 1)) if n_pushes > 1 else np.float32(0)
                if variance < 0:
                    variance = np.float32(0)
                value /= np.float64(np.float32(np.sqrt(variance)) + SMALL)
            if bound:
                if value > bound:
                    value = bound
                elif value < -bound:
                    value = -bound
            out_NK[row, k] = value
    return n_pushes

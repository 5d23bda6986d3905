"""Running count, mean and sum of squared deviations (M2) per column.

Chan, Golub, LeVeque (1983), "Algorithms for computing the sample variance": batches are merged pairwise, so that
statistics of several runners can be merged in the same way.
"""

import numpy as np
from numba import njit


def update_moments_numpy(values_NK, count, mean_K, m2_K):
    """NumPy reference for update_moments()."""
    n = len(values_NK)
    if n == 0:
        return count
    values = values_NK.astype(np.float64)
    delta = values.mean(0) - mean_K
    mean_K += delta * n / (count + n)
    m2_K += ((values - values.mean(0)) ** 2).sum(0) + delta**2 * count * n / (count + n)
    return count + n


@njit(cache=True, nogil=True)
def update_moments(values_NK, count, mean_K, m2_K):
    """Add rows to the moments, in place; return the new count.

    Args:
        values_NK: [n, k] of any real dtype.
        count: int, rows seen before.
        mean_K, m2_K: float64 [k].
    """
    n = len(values_NK)
    if n == 0:
        return count
    for k in range(values_NK.shape[1]):
        total = 0.0
        for i in range(n):
            total += np.float64(values_NK[i, k])  # float32 would lose digits if this runs uncompiled
        mean = total / n
        m2 = 0.0
        for i in range(n):
            m2 += (np.float64(values_NK[i, k]) - mean) ** 2
        delta = mean - mean_K[k]
        mean_K[k] += delta * n / (count + n)
        m2_K[k] += m2 + delta * delta * count * n / (count + n)
    return count + n

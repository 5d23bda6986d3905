"""Scaling and clipping of raw actions to the bounds of a Box, bit-identical to NumPy."""

import numpy as np
from numba import njit


def scale_actions_numpy(raw_NK, low_K, high_K, out_NK):
    """NumPy reference for scale_actions()."""
    out_NK[:] = np.clip(low_K + (raw_NK + 1.0) * (high_K - low_K) / 2.0, low_K, high_K)


def scale_actions_far(raw_NK, low_K, high_K, out_NK):
    """Scale actions between bounds whose distance overflows their dtype."""
    share = (np.clip(raw_NK, -1, 1) + 1.0) / 2.0
    out_NK[:] = np.clip(low_K * (1.0 - share) + high_K * share, low_K, high_K)


@njit(cache=True, nogil=True)
def scale_actions(raw_NK, low_K, high_K, out_NK):
    """Map [-1, 1] to [low, high], and clip the results to these bounds.

    Args:
        raw_NK: float32 or float64 [n, k].
        low_K, high_K: [k], finite bounds, both float32 or both float64.
        out_NK: [n, k] with the dtype of the bounds, out. NaN remains NaN.
    """
    one = raw_NK.dtype.type(1)
    two = raw_NK.dtype.type(2) * low_K.dtype.type(1)  # in the common dtype of both, so that nothing is widened
    for i in range(raw_NK.shape[0]):
        for k in range(raw_NK.shape[1]):
            value = low_K[k] + (raw_NK[i, k] + one) * (high_K[k] - low_K[k]) / two
            if value <= low_K[k]:
                value = low_K[k]
            if value >= high_K[k]:
                value = high_K[k]
            out_NK[i, k] = value


def clip_actions_numpy(raw_NK, low_K, high_K, out_NK):
    """NumPy reference for clip_actions()."""
    out_NK[:] = np.clip(raw_NK, low_K, high_K)


@njit(cache=True, nogil=True)
def clip_actions(raw_NK, low_K, high_K, out_NK):
    """Clip values to [low, high].

    Args:
        raw_NK: float32 or float64 [n, k].
        low_K, high_K: Bounds [k], possibly infinite; both float32 or both float64.
        out_NK: Output [n, k], with the dtype of the bounds. NaN stays NaN.
    """
    for i in range(raw_NK.shape[0]):
        for k in range(raw_NK.shape[1]):
            value = raw_NK[i, k]
            if value <= low_K[k]:
                value = low_K[k]
            if value >= high_K[k]:
                value = high_K[k]
            out_NK[i, k] = value

"""Raw actions of a Box -> actions within its bounds. Results are bit-identical to NumPy's."""

import numpy as np
from numba import njit


def scale_actions_numpy(raw_NK, low_K, high_K, out_NK):
    """Reference for scale_actions()."""
    out_NK[:] = np.clip(low_K + (raw_NK + 1.0) * (high_K - low_K) / 2.0, low_K, high_K)


def scale_actions_far(raw_NK, low_K, high_K, out_NK):
    """The same between bounds so far apart that their distance is no number of their dtype."""
    share = (np.clip(raw_NK, -1, 1) + 1.0) / 2.0
    out_NK[:] = np.clip(low_K * (1.0 - share) + high_K * share, low_K, high_K)


@njit(cache=True, nogil=True)
def scale_actions(raw_NK, low_K, high_K, out_NK):
    """Stretch -1 .. 1 to low .. high, and clip what lies beyond.

    Args:
        raw_NK: float32 or float64 [n, k].
        low_K, high_K: bounds, finite, both float32 or both float64.
        out_NK: of their dtype, out. NaN stays NaN.
    """
    one = raw_NK.dtype.type(1)
    two = raw_NK.dtype.type(2) * low_K.dtype.type(1)  # of the dtype that both together have: it widens nothing
    for i in range(raw_NK.shape[0]):
        for k in range(raw_NK.shape[1]):
            value = low_K[k] + (raw_NK[i, k] + one) * (high_K[k] - low_K[k]) / two
            if value <= low_K[k]:
                value = low_K[k]
            if value >= high_K[k]:
                value = high_K[k]
            out_NK[i, k] = value


def clip_actions_numpy(raw_NK, low_K, high_K, out_NK):
    """Reference for clip_actions()."""
    out_NK[:] = np.clip(raw_NK, low_K, high_K)


@njit(cache=True, nogil=True)
def clip_actions(raw_NK, low_K, high_K, out_NK):
    """What is below low becomes low, what is above high becomes high.

    Args:
        raw_NK: float32 or float64 [n, k].
        low_K, high_K: bounds, which may be infinite, both float32 or both float64.
        out_NK: of their dtype, out. NaN stays NaN.
    """
    for i in range(raw_NK.shape[0]):
        for k in range(raw_NK.shape[1]):
            value = raw_NK[i, k]
            if value <= low_K[k]:
                value = low_K[k]
            if value >= high_K[k]:
                value = high_K[k]
            out_NK[i, k] = value

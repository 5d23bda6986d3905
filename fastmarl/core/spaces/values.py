"""Arrays of values: what a dtype can hold."""

import numpy as np


def can_hold(dtype: np.dtype, given: np.ndarray) -> bool:
    """Whether an array becomes one of this dtype with no kind of number lost, and, between integers, no number.

    Floats may lose digits.
    """
    if dtype.kind in "iu" and given.dtype.kind in "iub":
        if np.can_cast(given.dtype, dtype) or not given.size:
            return True
        limits = np.iinfo(dtype)
        return bool(limits.min <= int(given.min()) and int(given.max()) <= limits.max)
    return np.can_cast(given.dtype, dtype, "same_kind")


def first_unheld(dtype: np.dtype, given: np.ndarray) -> int:
    """The first row of an array [n, ...] that one of this dtype can't hold, see `can_hold()`; -1: there is none."""
    if given.dtype == dtype or can_hold(dtype, given):
        return -1
    return next((row for row in range(len(given)) if not can_hold(dtype, given[row : row + 1])), -1)


def described(array: np.ndarray) -> str:
    """An array's dtype and shape, and the range of integers, for errors."""
    values = f" with values from {array.min()} to {array.max()}" if array.dtype.kind in "iu" and array.size else ""
    return f"{array.dtype} of shape {array.shape}{values}"


def narrowest(low: int, high: int) -> np.dtype:
    """The smallest dtype of integers that holds those from `low` to `high`."""
    kinds = (np.uint8, np.uint16, np.uint32, np.uint64) if low >= 0 else (np.int8, np.int16, np.int32, np.int64)
    return np.dtype(next(kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max))

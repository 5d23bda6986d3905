"""Checks of which values a dtype can represent, and of the value range of spaces."""

import math

import gymnasium as gym
import numpy as np

NUMBERS = "biufc"  # dtype kinds


def can_hold(dtype: np.dtype, given: np.ndarray) -> bool:
    """Return True if `given` can be cast to `dtype` without changing its kind or, for integers, any value.

    Floats may lose precision.
    """
    if dtype.kind in "iu" and given.dtype.kind in "iub":
        if np.can_cast(given.dtype, dtype) or not given.size:
            return True
        limits = np.iinfo(dtype)
        return bool(limits.min <= int(given.min()) and int(given.max()) <= limits.max)
    return np.can_cast(given.dtype, dtype, "same_kind")


def converted(given: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Reshape `given` to `shape`, and cast it to `dtype` if no value changes. If its size differs, return it as it is.

    Used for spaces that override `contains()`, and so may accept shapes and dtypes that their base class rejects.
    """
    if given.dtype.kind not in "biuf" or given.size != math.prod(shape):
        return given
    given = given.reshape(shape)
    if can_hold(dtype, given):
        return given
    with np.errstate(invalid="ignore", over="ignore"):
        cast = given.astype(dtype)
    return cast if np.array_equal(cast, given) else given


def first_unheld(dtype: np.dtype, given: np.ndarray) -> int:
    """Return the first row of an array [n, ...] that `dtype` cannot represent (see `can_hold()`), or -1."""
    if given.dtype == dtype or can_hold(dtype, given):
        return -1
    return next((row for row in range(len(given)) if not can_hold(dtype, given[row : row + 1])), -1)


def unheld(dtype: np.dtype, given: np.ndarray) -> np.ndarray:
    """Return a bool array, shaped like `given`, that is True where `dtype` cannot represent a value.

    A value is representable if it stays equal; floats may lose precision, but not become infinite.
    """
    kind, of_given = dtype.kind, given.dtype.kind
    if kind == "O" or given.dtype == dtype:
        return np.zeros(given.shape, np.bool_)
    if kind not in NUMBERS or of_given not in NUMBERS:
        return np.asarray(given.astype(dtype) != given) if kind == of_given else np.ones(given.shape, np.bool_)
    if of_given == "c" and kind != "c":
        return np.asarray((given.imag != 0) | unheld(dtype, given.real))
    if kind == "b":
        return np.asarray((given != 0) & (given != 1))
    if kind in "iu":
        return _unheld_by_integers(np.iinfo(dtype), given)
    with np.errstate(over="ignore"):
        made = given.astype(dtype)
    if of_given in "fc":
        return np.asarray(np.isfinite(given) & ~np.isfinite(made))
    is_far = np.zeros(given.shape, np.bool_)
    if of_given != "b":
        most = 2 ** (np.finfo(dtype).nmant + 1)  # all integers up to this are representable
        is_far = np.asarray((given > most) | (given < -most))
        is_far[is_far] = made[is_far].astype(object) != given[is_far].astype(object)  # Python compares them exactly
    return is_far


def _unheld_by_integers(limits: np.iinfo, given: np.ndarray) -> np.ndarray:
    if np.can_cast(given.dtype, limits.dtype):
        return np.zeros(given.shape, np.bool_)
    if given.dtype.kind != "f":
        return np.asarray((given < limits.min) | (given > limits.max))
    with np.errstate(invalid="ignore"):  # infinity % 1; comparisons with NaN are False
        wide = given.astype(np.promote_types(given.dtype, np.float64))
        return np.asarray(~((wide >= float(limits.min)) & (wide < float(limits.max) + 1) & (wide % 1 == 0)))


def described(array: np.ndarray) -> str:
    """Describe the dtype, shape and, for integers, value range of an array, for error messages."""
    values = f" with values from {array.min()} to {array.max()}" if array.dtype.kind in "iu" and array.size else ""
    return f"{array.dtype} of shape {array.shape}{values}"


def narrowest(low: int, high: int) -> np.dtype:
    """Return the smallest integer dtype that can represent all values from `low` to `high`."""
    kinds = (np.uint8, np.uint16, np.uint32, np.uint64) if low >= 0 else (np.int8, np.int16, np.int32, np.int64)
    return np.dtype(next(kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max))


def choice_ranges(space: gym.Space) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lowest and highest values of each element of a Discrete, MultiDiscrete or MultiBinary action.

    Both are int64 [n_elements]. Returns None for a Box, whose range depends on the options `normalize_actions` and
    `clip_actions`.
    """
    if isinstance(space, gym.spaces.MultiBinary):
        least = np.zeros(math.prod(space.shape), np.int64)
        return least, least + 1
    if isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        numbers = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        least = np.array(space.start, np.int64).reshape(-1)
        return least, least + np.array(numbers, np.int64).reshape(-1) - 1
    return None

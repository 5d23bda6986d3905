"""The connector behind the option `observation_filter`, bit-identical to the old filter of RLlib."""

import math

import gymnasium as gym
import numpy as np
from numba import njit

from fastmarl.core.connectors.base import Rows
from fastmarl.core.connectors.mean_std_filter import MeanStdFilter as FilterConnector
from fastmarl.core.connectors.moments import RunningMeanStd
from fastmarl.core.spaces.layout import leaf_spaces, with_leaf_spaces

LEAST_STD = np.float32(1e-6)  # as in RLlib, added to standard deviations


class ObservationFilter(FilterConnector):
    """Normalises observations like `MeanStdFilter` of the old RLlib API stack.

    Results keep the dtype of the observations, so integer results are truncated. Leaves of a Dict or Tuple are first
    converted to float32, as in RLlib preprocessors. Nothing is clipped.

    Args:
        is_concurrent: Value of `is_concurrent` in the worker filters.
    """

    def __init__(self, is_concurrent: bool = False):
        super().__init__(clip_by_value=None)
        self.is_concurrent = is_concurrent

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        super().recompute_output_observation_space(input_observation_space, input_action_space)
        self._is_nested = isinstance(input_observation_space, gym.spaces.Dict | gym.spaces.Tuple)
        spaces = leaf_spaces(input_observation_space)
        made = [self._space(space) if is_in else space for space, is_in in zip(spaces, self._normalised, strict=True)]
        return with_leaf_spaces(input_observation_space, made)

    def _space(self, space: gym.Space) -> gym.Space:
        dtype = np.dtype(np.float32 if self._is_nested else space.dtype)
        bounds = np.iinfo(dtype) if dtype.kind in "iu" else None
        low, high = (-math.inf, math.inf) if bounds is None else (bounds.min, bounds.max)
        return gym.spaces.Box(low, high, space.shape, dtype)  # type: ignore[arg-type]

    def _filter(self, leaf: np.ndarray, box: int, rows: Rows) -> np.ndarray:
        moments = self._moments[box]
        values = np.ascontiguousarray(leaf).reshape(len(rows), moments.stats.mean.size)
        values = values.astype(np.float32) if self._is_nested else values
        is_unfit = ~np.isfinite(values).all(1)
        if is_unfit.any():
            first = int(is_unfit.argmax())
            raise rows.error(first, f"MeanStdFilter needs finite numbers, got {leaf[first]}")
        stats, buffer = moments.stats.copy(), moments.delta.copy()
        out = filtered(values, stats, buffer, self.update_stats)
        if self.update_stats:
            self._moments[box] = moments._replace(stats=stats, delta=buffer)
        return out.reshape(leaf.shape)


def filtered(
    values_NK: np.ndarray,
    stats: RunningMeanStd,
    buffer: RunningMeanStd,
    update: bool,
    demean: bool = True,
    destd: bool = True,
    clip: float | None = None,
) -> np.ndarray:
    """Normalise each row with `stats`, after adding it to `stats` and `buffer` if `update`.

    Args:
        values_NK: Rows [n, k] of any real dtype.
        stats: Moments of k numbers, changed in place.
        buffer: Moments of k numbers, changed in place.
        update: Add the rows to the moments.
        demean: Subtract the mean.
        destd: Divide by the standard deviation.
        clip: Clip results to [-clip, clip]; None or 0 for no clipping.

    Returns:
        Rows [n, k] with the dtype of `values_NK`.
    """
    given = values_NK.astype(np.float64)  # as in NumPy arithmetic with float64 means
    out, n = np.empty(given.shape), len(given)
    mean, m2 = stats.mean.copy(), stats._m2.copy()
    push_and_normalize(given, stats.count, mean, m2, update, demean, destd, float(clip) if clip else math.inf, out)
    if update:
        stats._become(stats.count + n, mean, m2)
        mean, m2 = buffer.mean.copy(), buffer._m2.copy()
        push_and_normalize(given, buffer.count, mean, m2, True, False, False, math.inf, np.empty_like(out))
        buffer._become(buffer.count + n, mean, m2)
    return out.astype(values_NK.dtype)


def merged(stats: RunningMeanStd, change: RunningMeanStd) -> RunningMeanStd:
    """Return the moments of the rows of both `stats` and `change`, computed exactly as in RLlib."""
    n, more = float(stats.count), float(change.count)
    found = stats.copy()
    if n + more:
        delta = change.mean - stats.mean
        mean = stats.mean + delta * more / (n + more)
        m2 = stats._m2 + (change._m2 + delta * delta * (n * more / (n + more)))
        found._become(stats.count + change.count, mean, m2)
    return found


@njit(cache=True, nogil=True)
def push_and_normalize(values_NK, count, mean_K, m2_K, counts, demean, destd, clip, out_NK):
    """Add each row to the moments and write the normalised row to `out_NK`; see `filtered()` for the arguments.

    The variance is the sample variance (n - 1), or 0 for a single row. Variance and standard deviation are float32.
    """
    seen = count
    for i in range(len(values_NK)):
        if counts:
            seen += 1
        for k in range(values_NK.shape[1]):
            value = values_NK[i, k]
            if counts:
                delta = value - mean_K[k]
                mean_K[k] += delta / seen
                m2_K[k] += delta * (value - mean_K[k])
            if demean:
                value -= mean_K[k]
            if destd:
                variance = np.float32(m2_K[k] / (seen - 1.0)) if seen > 1 else np.float32(0.0)
                value /= np.float64(np.sqrt(variance) + LEAST_STD)
            out_NK[i, k] = min(max(value, -clip), clip)

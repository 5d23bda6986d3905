"""Returns and step counts from the rows of a call, and means over calls; each kernel has a NumPy reference."""

import math

import numpy as np
from numba import njit


def accumulate_numpy(
    reward_R, lane_R, lookback_R, first_action, end_action, row_L, final_L, return_L, steps_L, actions_L
):
    """NumPy reference for accumulate()."""
    rows = np.arange(len(reward_R))
    counted_before = np.zeros(len(reward_R), bool)
    counted_before[: len(lookback_R)] = lookback_R
    completed = ~counted_before & ((row_L[lane_R] != rows) | (final_L[lane_R] >= 0))
    np.add.at(return_L, lane_R[completed], reward_R[completed])
    np.add.at(steps_L, lane_R[completed], 1)
    np.add.at(actions_L, lane_R[first_action:end_action], 1)


@njit(cache=True, nogil=True)
def accumulate(reward_R, lane_R, lookback_R, first_action, end_action, row_L, final_L, return_L, steps_L, actions_L):
    """Add the rewards, steps and actions of the rows in a module block to its lanes, in place.

    Args:
        reward_R: float64 [n], reward for the action taken at each row.
        lane_R: int32 [n].
        lookback_R: bool [<= n], for the first rows: True if the row was counted in an earlier call.
        first_action, end_action: Range of rows whose agents acted in this call.
        row_L, final_L: int64, last row of each lane, whose step is complete only if the lane is finished (final_L >=
            0).
        return_L: float64, sum of the rewards of completed steps, added in row order.
        steps_L, actions_L: int64, number of completed steps and of actions in this call.
    """
    for row in range(len(reward_R)):
        lane = lane_R[row]
        if first_action <= row < end_action:
            actions_L[lane] += 1
        if (row < len(lookback_R) and lookback_R[row]) or (row_L[lane] == row and final_L[lane] < 0):
            continue
        return_L[lane] += reward_R[row]
        steps_L[lane] += 1


def sum_spans_numpy(values, begin_S, end_S, sum_S):
    """NumPy reference for sum_spans()."""
    for span, (begin, end) in enumerate(zip(begin_S, end_S, strict=True)):
        sum_S[span] = sum(values[begin:end])  # left to right; sum() of Python floats is more exact from 3.12 on


@njit(cache=True, nogil=True)
def sum_spans(values, begin_S, end_S, sum_S):
    """Sum each values[begin:end] from left to right, like sum() of NumPy scalars.

    Args:
        values: float64 [n].
        begin_S, end_S: int64 [spans].
        sum_S: float64 [spans], out.
    """
    for span in range(len(begin_S)):
        total = 0.0
        for i in range(begin_S[span], end_S[span]):
            total += values[i]
        sum_S[span] = total


def exponential_mean_numpy(mean, weight, values):
    """NumPy reference for exponential_mean()."""
    for value in values[~np.isnan(values)].tolist():
        mean = value if np.isnan(mean) else weight * value + (1.0 - weight) * mean
    return mean


@njit(cache=True, nogil=True)
def exponential_mean(mean, weight, values):
    """Return the exponential moving `mean`, updated with `values` (float64 [n]); NaN in either means no value."""
    rest = 1.0 - weight
    for value in values:
        if not math.isnan(value):
            mean = value if math.isnan(mean) else weight * value + rest * mean
    return mean

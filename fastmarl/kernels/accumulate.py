"""Returns and step counts of lanes from the rows of one call. NumPy says what, numba says how fast."""

import numpy as np
from numba import njit


def accumulate_numpy(
    reward_R, lane_R, lookback_R, first_action, end_action, row_L, final_L, return_L, steps_L, actions_L
):
    """Reference for accumulate()."""
    rows = np.arange(len(reward_R))
    counted_before = np.zeros(len(reward_R), bool)
    counted_before[: len(lookback_R)] = lookback_R
    completed = ~counted_before & ((row_L[lane_R] != rows) | (final_L[lane_R] >= 0))
    np.add.at(return_L, lane_R[completed], reward_R[completed])
    np.add.at(steps_L, lane_R[completed], 1)
    np.add.at(actions_L, lane_R[first_action:end_action], 1)


@njit(cache=True, nogil=True)
def accumulate(reward_R, lane_R, lookback_R, first_action, end_action, row_L, final_L, return_L, steps_L, actions_L):
    """Add the rows of one module's block to its lanes, in place.

    Args:
        reward_R: float64 [n], reward for the action taken at each row.
        lane_R: int32 [n].
        lookback_R: bool [<= n], of the first rows: those that were counted in an earlier call.
        first_action, end_action: rows that acted in this call.
        row_L: int64, each lane's last row: its step is completed only if the lane has ended (final_L >= 0).
        return_L: float64, sum of completed steps' rewards, in order of the rows.
        steps_L, actions_L: int64, numbers of completed steps and of actions in this call.
    """
    for row in range(len(reward_R)):
        lane = lane_R[row]
        if first_action <= row < end_action:
            actions_L[lane] += 1
        if (row < len(lookback_R) and lookback_R[row]) or (row_L[lane] == row and final_L[lane] < 0):
            continue
        return_L[lane] += reward_R[row]
        steps_L[lane] += 1

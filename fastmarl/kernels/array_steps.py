"""One step of a batch of envs onto the lanes of their agents.

Axes in names: P a place in a group's arrays, env * (number of agents) + agent; E env, L lane, R row.
"""

import numpy as np
from numba import njit

NO_PLACE = -1


def settle_step_numpy(
    module, lane_P, reward_P, terminated_P, truncated_P, present_P, all_done_E, module_L, row_L, done_L, final_L,
    reward_R, first_final, kept, ended,
):  # fmt: skip
    """Reference for settle_step()."""
    env_P = np.repeat(np.arange(len(all_done_E)), len(lane_P) // max(1, len(all_done_E)))
    places = np.flatnonzero(lane_P >= 0)
    places = places[module_L[lane_P[places]] == module]
    bad = places[~np.isfinite(reward_P[places])]
    if len(bad):
        return 0, 0, bad[0]
    lanes = lane_P[places]
    has_row = row_L[lanes] >= 0
    reward_R[row_L[lanes[has_row]]] += reward_P[places[has_row]]
    done_L[lanes] |= terminated_P[places].astype(np.uint8) | (truncated_P[places].astype(np.uint8) << 1)
    all_done = all_done_E[env_P[places]]
    done_L[lanes] = np.where(done_L[lanes] == 0, all_done, done_L[lanes])
    is_done = done_L[lanes] != 0
    n_ended = int(is_done.sum())
    ended[:n_ended] = places[is_done]
    final_L[lanes[is_done]] = first_final + np.arange(n_ended)
    stays = places[~is_done & present_P[places]]
    kept[: len(stays)] = stays
    return len(stays), n_ended, NO_PLACE


@njit(cache=True, nogil=True)
def settle_step(
    module, lane_P, reward_P, terminated_P, truncated_P, present_P, all_done_E, module_L, row_L, done_L, final_L,
    reward_R, first_final, kept, ended,
):  # fmt: skip
    """Add rewards and flags to the lanes of one module in one group, and tell who goes on.

    Args:
        module: whose lanes.
        lane_P: int32, -1 where there is none.
        reward_P, terminated_P, truncated_P, present_P: float64 and bools, of this step.
        all_done_E: uint8, 1 terminated, 2 truncated: flags of whole episodes, for who has none of its own.
        module_L, row_L, done_L, final_L: the lane table's; the last two are written.
        reward_R: float64, of the module's block; rewards are added to the lanes' last rows, if they have one.
        first_final: place of the first final observation that is free.
        kept, ended: int64 [P], written: places of those observed who act next, and of those whose lane ends.

    Returns:
        (how many kept, how many ended, the place of a reward that is not finite or NO_PLACE). With such a place,
        rewards before it were added.
    """
    agents = len(lane_P) // max(1, len(all_done_E))
    n_kept = n_ended = 0
    for p in range(len(lane_P)):
        lane = lane_P[p]
        if lane < 0 or module_L[lane] != module:
            continue
        if not np.isfinite(reward_P[p]):
            return 0, 0, p
        if row_L[lane] >= 0:
            reward_R[row_L[lane]] += reward_P[p]
        if terminated_P[p]:
            done_L[lane] |= 1
        if truncated_P[p]:
            done_L[lane] |= 2
        if done_L[lane] == 0:
            done_L[lane] = all_done_E[p // agents]
        if done_L[lane] != 0:
            final_L[lane] = first_final + n_ended
            ended[n_ended] = p
            n_ended += 1
        elif present_P[p]:
            kept[n_kept] = p
            n_kept += 1
    return n_kept, n_ended, NO_PLACE


def append_rows_numpy(
    places, lane_P, agents, env_t_E, first, lane_R, prev_R, env_t_R, reward_R, row_L, count_L
):  # fmt: skip
    """Reference for append_rows()."""
    lanes = lane_P[places]
    rows = slice(first, first + len(places))
    lane_R[rows] = lanes
    prev_R[rows] = row_L[lanes]
    env_t_R[rows] = env_t_E[places // agents]
    reward_R[rows] = 0.0
    row_L[lanes] = np.arange(first, first + len(places))
    count_L[lanes] += 1


@njit(cache=True, nogil=True)
def append_rows(
    places, lane_P, agents, env_t_E, first, lane_R, prev_R, env_t_R, reward_R, row_L, count_L
):  # fmt: skip
    """Give the lanes at these places (int64, each once) one row more, from row `first` on.

    Args:
        places: int64.
        lane_P, agents: int32, and the number of agents of the group.
        env_t_E: int32, the env step to record.
        first: int, the row of the first place.
        lane_R, prev_R, env_t_R, reward_R: columns of the module's block, written.
        row_L, count_L: the lane table's, written.
    """
    for i in range(len(places)):
        p = places[i]
        lane, row = lane_P[p], first + i
        lane_R[row] = lane
        prev_R[row] = row_L[lane]
        env_t_R[row] = env_t_E[p // agents]
        reward_R[row] = 0.0
        row_L[lane] = row
        count_L[lane] += 1

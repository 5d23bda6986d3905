"""Kernels that write a step of a batch of envs to the lanes of its agents.

Axes in names: P position in the group arrays, env * (number of agents) + agent; E env, L lane, R row.
"""

import numpy as np
from numba import njit

NO_POSITION = -1


def count_step_numpy(terminated_E, truncated_E, env_t_E, all_done_E, over):
    """NumPy reference for count_step()."""
    env_t_E += 1
    all_done_E[:] = terminated_E.astype(np.uint8) | (truncated_E.astype(np.uint8) << 1)
    n_over = np.count_nonzero(all_done_E)
    over[:n_over] = np.flatnonzero(all_done_E)
    return n_over


@njit(cache=True, nogil=True)
def count_step(terminated_E, truncated_E, env_t_E, all_done_E, over):
    """Count a step of each env, and find the envs whose episodes are over.

    Args:
        terminated_E, truncated_E: bool, flags of entire episodes.
        env_t_E: int32, incremented.
        all_done_E: uint8, out: the flags as bits, 1 terminated, 2 truncated.
        over: int64 [E], out: envs whose episodes are over, ascending.

    Returns:
        The number of envs in `over`.
    """
    n_over = 0
    for e in range(len(env_t_E)):
        env_t_E[e] += 1
        all_done_E[e] = np.uint8(terminated_E[e]) | (np.uint8(truncated_E[e]) << 1)
        if all_done_E[e]:
            over[n_over] = e
            n_over += 1
    return n_over


def find_absent_numpy(lane_P, reward_P, present_P, rewarded, observed):
    """NumPy reference for find_absent()."""
    for out, is_found in ((rewarded, reward_P != 0), (observed, present_P)):
        positions = np.flatnonzero((lane_P < 0) & is_found)
        out[: len(positions)] = positions
    return int(((lane_P < 0) & (reward_P != 0)).sum()), int(((lane_P < 0) & present_P).sum())


@njit(cache=True, nogil=True)
def find_absent(lane_P, reward_P, present_P, rewarded, observed):
    """Find agents without a lane that receive a reward, or are observed.

    Args:
        lane_P: int32, -1 without a lane.
        reward_P, present_P: float64 and bool, of this step.
        rewarded, observed: int64 [P], out: their positions.

    Returns:
        (number of agents with a reward, number of observed agents).
    """
    n_rewarded = n_observed = 0
    for p in range(len(lane_P)):
        if lane_P[p] < 0:
            if reward_P[p] != 0.0:
                rewarded[n_rewarded] = p
                n_rewarded += 1
            if present_P[p]:
                observed[n_observed] = p
                n_observed += 1
    return n_rewarded, n_observed


def settle_step_numpy(
    module, lane_P, reward_P, terminated_P, truncated_P, present_P, all_done_E, module_L, row_L, done_L, final_L,
    reward_R, first_final, kept, ended,
):  # fmt: skip
    """NumPy reference for settle_step()."""
    env_P = np.repeat(np.arange(len(all_done_E)), len(lane_P) // max(1, len(all_done_E)))
    positions = np.flatnonzero(lane_P >= 0)
    positions = positions[module_L[lane_P[positions]] == module]
    bad = positions[~np.isfinite(reward_P[positions])]
    if len(bad):
        return 0, 0, bad[0]
    lanes = lane_P[positions]
    has_row = row_L[lanes] >= 0
    reward_R[row_L[lanes[has_row]]] += reward_P[positions[has_row]]
    done_L[lanes] |= terminated_P[positions].astype(np.uint8) | (truncated_P[positions].astype(np.uint8) << 1)
    all_done = all_done_E[env_P[positions]]
    done_L[lanes] = np.where(done_L[lanes] == 0, all_done, done_L[lanes])
    is_done = done_L[lanes] != 0
    n_ended = int(is_done.sum())
    ended[:n_ended] = positions[is_done]
    final_L[lanes[is_done]] = first_final + np.arange(n_ended)
    stays = positions[~is_done & present_P[positions]]
    kept[: len(stays)] = stays
    return len(stays), n_ended, NO_POSITION


@njit(cache=True, nogil=True)
def settle_step(
    module, lane_P, reward_P, terminated_P, truncated_P, present_P, all_done_E, module_L, row_L, done_L, final_L,
    reward_R, first_final, kept, ended,
):  # fmt: skip
    """Add rewards and flags to the lanes of a module in a group, and find the lanes that continue or end.

    Args:
        module: Index of the module.
        lane_P: int32, -1 without a lane.
        reward_P, terminated_P, truncated_P, present_P: float64 and bools, of this step.
        all_done_E: uint8, 1 terminated, 2 truncated: flags of entire episodes, for lanes without an individual flag.
        module_L, row_L, done_L, final_L: Arrays of the lane table; the last two are written.
        reward_R: float64, of the module block; rewards are added to the last row of each lane, if any.
        first_final: Index of the first free final observation.
        kept, ended: int64 [P], out: positions of lanes that act next, and of lanes that end.

    Returns:
        (number kept, number ended, position of a non-finite reward or NO_POSITION). If there is such a reward, only
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
    return n_kept, n_ended, NO_POSITION


def append_rows_numpy(
    positions, n, lane_P, agents, env_t_E, first, lane_R, prev_R, env_t_R, reward_R, row_L, count_L
):  # fmt: skip
    """NumPy reference for append_rows()."""
    positions = positions[:n]
    lanes = lane_P[positions]
    rows = slice(first, first + n)
    lane_R[rows] = lanes
    prev_R[rows] = row_L[lanes]
    env_t_R[rows] = env_t_E[positions // agents]
    reward_R[rows] = 0.0
    row_L[lanes] = np.arange(first, first + n)
    count_L[lanes] += 1


@njit(cache=True, nogil=True)
def append_rows(
    positions, n, lane_P, agents, env_t_E, first, lane_R, prev_R, env_t_R, reward_R, row_L, count_L
):  # fmt: skip
    """Append one row to each lane at these positions, starting at row `first`.

    Args:
        positions, n: int64 [>= n], distinct positions, and the number of positions to use.
        lane_P, agents: int32, and the number of agents in the group.
        env_t_E: int32, env step to record.
        first: int, row of the first position.
        lane_R, prev_R, env_t_R, reward_R: Columns of the module block, written.
        row_L, count_L: Arrays of the lane table, written.
    """
    for i in range(n):
        p = positions[i]
        lane, row = lane_P[p], first + i
        lane_R[row] = lane
        prev_R[row] = row_L[lane]
        env_t_R[row] = env_t_E[p // agents]
        reward_R[row] = 0.0
        row_L[lane] = row
        count_L[lane] += 1


def end_lanes_numpy(ended, n, agents, present_P, lane_P, row_L, n_rows, first, prev_F, at_F, lanes, envs):
    """NumPy reference for end_lanes()."""
    positions, finals = ended[:n], slice(first, first + n)
    lanes[:n], envs[:n] = lane_P[positions], positions // agents
    prev_F[finals] = row_L[lanes[:n]]
    at_F[finals] = np.where(present_P[positions], n_rows, -1)
    lane_P[positions] = -1


@njit(cache=True, nogil=True)
def end_lanes(ended, n, agents, present_P, lane_P, row_L, n_rows, first, prev_F, at_F, lanes, envs):
    """Close the lanes at these positions and assign them the final observations first:first + n.

    Args:
        ended: int64 [>= n], positions.
        n, agents, n_rows, first: ints: number of ending lanes, of agents in the group, and of rows in the block; index
            of the first free final.
        present_P: bool, True if there is a current observation.
        lane_P: int32, set to -1 at these positions.
        row_L: int64, last row of each lane.
        prev_F: int64, out: last row of the lane.
        at_F: int64, out: n_rows, or -1 without a current observation.
        lanes, envs: int32 and int64 [>= n], out: the lanes, and their envs.
    """
    for i in range(n):
        position = ended[i]
        lane = lane_P[position]
        lanes[i], envs[i] = lane, position // agents
        prev_F[first + i] = row_L[lane]
        at_F[first + i] = n_rows if present_P[position] else -1
        lane_P[position] = -1

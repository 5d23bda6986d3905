"""Advantages and value targets of concatenated trajectories.

Schulman, Moritz, Levine, Jordan, Abbeel (2016), "High-Dimensional Continuous Control Using Generalized Advantage
Estimation", equation 16. Espeholt et al. (2018), "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
Actor-Learner Architectures", equation 1.
"""

import numpy as np
from numba import njit


def gae_numpy(reward_N, value_N, last_value_S, length_S, gamma, lambda_, advantage_N):
    """NumPy reference for gae(), with each sum of the definition written out."""
    end = 0
    for last_value, length in zip(last_value_S, length_S.tolist(), strict=True):
        steps = slice(end, end + length)
        values = np.append(value_N[steps].astype(np.float64), last_value)
        deltas = reward_N[steps] + gamma * values[1:] - values[:-1]
        ahead = np.arange(length)[None, :] - np.arange(length)[:, None]
        weights = np.where(ahead >= 0, (gamma * lambda_) ** np.maximum(ahead, 0), 0.0)
        advantage_N[steps] = weights @ deltas
        end += length


@njit(cache=True, nogil=True)
def gae(reward_N, value_N, last_value_S, length_S, gamma, lambda_, advantage_N):
    """Compute generalised advantage estimates, in float64.

    With values of 0 and a `lambda_` of 1, the results are discounted returns.

    Args:
        reward_N, value_N: float [n], reward of each step and value of its observation, concatenated over trajectories.
        last_value_S: float [s], value of the observation after the last step; 0 if the trajectory terminated.
        length_S: int64 [s], number of steps of each trajectory; the sum is n.
        gamma, lambda_: float.
        advantage_N: float [n], out.
    """
    begin = 0
    for s in range(len(length_S)):
        advantage = 0.0
        next_value = np.float64(last_value_S[s])
        for i in range(begin + length_S[s] - 1, begin - 1, -1):
            value = np.float64(value_N[i])
            delta = np.float64(reward_N[i]) + gamma * next_value - value
            advantage = delta + gamma * lambda_ * advantage
            advantage_N[i] = advantage
            next_value = value
        begin += length_S[s]


def vtrace_numpy(
    reward_N, value_N, last_value_S, length_S, ratio_N, gamma, lambda_, clip_rho, clip_pg_rho, target_N, advantage_N
):
    """NumPy reference for vtrace(), with each sum and product of the definition written out."""
    end = 0
    for last_value, length in zip(last_value_S, length_S.tolist(), strict=True):
        steps = slice(end, end + length)
        values = np.append(value_N[steps].astype(np.float64), last_value)
        ratios, rewards = ratio_N[steps].astype(np.float64), reward_N[steps]
        deltas = np.minimum(clip_rho, ratios) * (rewards + gamma * values[1:] - values[:-1])
        traces = lambda_ * np.minimum(1.0, ratios)
        targets = values.copy()
        for s in range(length):
            targets[s] += sum(gamma ** (t - s) * np.prod(traces[s:t]) * deltas[t] for t in range(s, length))
        target_N[steps] = targets[:-1]
        advantage_N[steps] = np.minimum(clip_pg_rho, ratios) * (rewards + gamma * targets[1:] - values[:-1])
        end += length


@njit(cache=True, nogil=True)
def vtrace(
    reward_N, value_N, last_value_S, length_S, ratio_N, gamma, lambda_, clip_rho, clip_pg_rho, target_N, advantage_N
):
    """Compute V-trace value targets and advantages, in float64.

    Args:
        reward_N, value_N, last_value_S, length_S, gamma: See gae().
        ratio_N: float [n], current probability of each action, divided by its probability when it was taken.
        lambda_: float, decay of the traces per step.
        clip_rho, clip_pg_rho: float, upper limits of ratios in targets and advantages; in traces the limit is 1.
        target_N, advantage_N: float [n], out.
    """
    begin = 0
    for s in range(len(length_S)):
        next_value = np.float64(last_value_S[s])
        next_target = next_value
        for i in range(begin + length_S[s] - 1, begin - 1, -1):
            value, ratio, reward = np.float64(value_N[i]), np.float64(ratio_N[i]), np.float64(reward_N[i])
            delta = min(clip_rho, ratio) * (reward + gamma * next_value - value)
            trace = lambda_ * min(1.0, ratio)
            advantage_N[i] = min(clip_pg_rho, ratio) * (reward + gamma * next_target - value)
            next_target = value + delta + gamma * trace * (next_target - next_value)
            target_N[i] = next_target
            next_value = value
        begin += length_S[s]


def n_step_returns_numpy(reward_N, value_N, last_value_S, length_S, n_step, gamma, return_N):
    """NumPy reference for n_step_returns(), with each sum written out."""
    end = 0
    for last_value, length in zip(last_value_S, length_S.tolist(), strict=True):
        steps = slice(end, end + length)
        values, rewards = np.append(value_N[steps].astype(np.float64), last_value), reward_N[steps]
        for i in range(length):
            k = min(n_step, length - i)
            return_N[end + i] = np.sum(gamma ** np.arange(k) * rewards[i : i + k]) + gamma**k * values[i + k]
        end += length


@njit(cache=True, nogil=True)
def n_step_returns(reward_N, value_N, last_value_S, length_S, n_step, gamma, return_N):
    """Compute the discounted sum of the next `n_step` rewards and the value after them, in float64.

    Args:
        reward_N, value_N, last_value_S, length_S, gamma: See gae().
        n_step: int >= 1, number of rewards to sum; fewer are summed at the end of a trajectory.
        return_N: float [n], out.
    """
    begin = 0
    for s in range(len(length_S)):
        end = begin + length_S[s]
        for i in range(begin, end):
            stop = min(i + n_step, end)
            total = np.float64(last_value_S[s]) if stop == end else np.float64(value_N[stop])
            for j in range(stop - 1, i - 1, -1):
                total = np.float64(reward_N[j]) + gamma * total
            return_N[i] = total
        begin = end


def discounted_sums_numpy(value_N, gamma, sum_N):
    """NumPy reference for discounted_sums(), with each sum written out."""
    n = len(value_N)
    for i in range(n):
        sum_N[i] = np.sum(value_N[i:].astype(np.float64) * gamma ** np.arange(n - i))


@njit(cache=True, nogil=True)
def discounted_sums(value_N, gamma, sum_N):
    """Compute the discounted sum from each step on, in float64, with the operation order of scipy.signal.lfilter.

    Args:
        value_N: Array [n] of any real dtype, the value of each step.
        gamma: float, discount per step.
        sum_N: float64 [n], out.
    """
    delayed = 0.0
    for i in range(len(value_N) - 1, -1, -1):
        value = np.float64(value_N[i])
        total = delayed + value
        delayed = value * 0.0 - total * -gamma
        sum_N[i] = total

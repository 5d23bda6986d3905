"""Advantages of trajectories that lie one after the other.

Schulman, Moritz, Levine, Jordan, Abbeel (2016), "High-Dimensional Continuous Control Using Generalized Advantage
Estimation", equation 16.
"""

import numpy as np
from numba import njit


def gae_numpy(reward_N, value_N, last_value_S, length_S, gamma, lambda_, advantage_N):
    """Reference for gae(): the sums of the definition, each written out."""
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
    """Generalised advantage estimates; computed in float64. With values of 0 and a `lambda_` of 1: discounted returns.

    Args:
        reward_N, value_N: float [n], of trajectory after trajectory: of each step, and of the observation acted upon.
        last_value_S: float [s], of the observation after the last step; 0 where the trajectory terminated.
        length_S: int64 [s], steps of each trajectory; their sum is n.
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


def discounted_sums_numpy(value_N, gamma, sum_N):
    """Reference for discounted_sums(): each sum written out."""
    n = len(value_N)
    for i in range(n):
        sum_N[i] = np.sum(value_N[i:].astype(np.float64) * gamma ** np.arange(n - i))


@njit(cache=True, nogil=True)
def discounted_sums(value_N, gamma, sum_N):
    """What is to come from each step on; computed in float64, in the order of scipy.signal.lfilter.

    Args:
        value_N: number [n], of each step.
        gamma: float, what the next step counts.
        sum_N: float64 [n], out.
    """
    delayed = 0.0
    for i in range(len(value_N) - 1, -1, -1):
        value = np.float64(value_N[i])
        total = delayed + value
        delayed = value * 0.0 - total * -gamma
        sum_N[i] = total

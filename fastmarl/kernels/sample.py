"""Actions from logits and random numbers, for batches so small that torch's cost is its calls."""

import math

import numpy as np
from numba import njit

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def sample_choices_numpy(logits_NK, nvec_P, uniform_NP, actions_NP, logp_N):
    """Reference for sample_choices()."""
    for i, row in enumerate(logits_NK.astype(np.float64)):
        logp, begin = 0.0, 0
        for part, size in enumerate(nvec_P):
            logits = row[begin : begin + size]
            weights = np.exp(logits - logits.max())
            total = np.cumsum(weights)[-1]
            chosen = np.flatnonzero(np.cumsum(weights) > uniform_NP[i, part] * total)
            action = chosen[0] if len(chosen) else 0
            logp += logits[action] - logits.max() - math.log(total) if total == total else np.nan
            actions_NP[i, part] = action
            begin += size
        logp_N[i] = logp


@njit(cache=True, nogil=True)
def sample_choices(logits_NK, nvec_P, uniform_NP, actions_NP, logp_N):
    """Draw an action for each part of each row by inverting its cumulative distribution, in float64.

    Args:
        logits_NK: float32 [n, k], k = sum(nvec); -inf is never drawn.
        nvec_P: int64 [parts], number of choices of each; their logits stand in a row.
        uniform_NP: float64 [n, parts] in [0, 1).
        actions_NP: int64 [n, parts], out; 0 for a part with NaN or +inf.
        logp_N: float32 [n], out: sums of the parts' log softmax(logits) of the action; NaN if there is such a part.
    """
    for i in range(len(logits_NK)):
        row_logp = 0.0
        begin = 0
        for part in range(len(nvec_P)):
            end = begin + nvec_P[part]
            highest = -np.inf
            for j in range(begin, end):
                highest = max(highest, logits_NK[i, j])
            total = 0.0
            for j in range(begin, end):
                total += math.exp(np.float64(logits_NK[i, j]) - highest)
            action = begin
            if math.isfinite(total):
                threshold = uniform_NP[i, part] * total
                reached = 0.0
                for j in range(begin, end):
                    weight = math.exp(np.float64(logits_NK[i, j]) - highest)
                    if weight > 0.0:
                        action = j  # the last one possible, should rounding leave the threshold unreached
                    reached += weight
                    if reached > threshold:
                        break
                row_logp += np.float64(logits_NK[i, action]) - highest - math.log(total)
            else:
                row_logp = np.nan
            actions_NP[i, part] = action - begin
            begin = end
        logp_N[i] = row_logp


def likeliest_choices_numpy(logits_NK, nvec_P, actions_NP):
    """Reference for likeliest_choices()."""
    for part, logits in enumerate(np.split(logits_NK, np.cumsum(nvec_P)[:-1], axis=1)):
        actions_NP[:, part] = logits.argmax(1)


@njit(cache=True, nogil=True)
def likeliest_choices(logits_NK, nvec_P, actions_NP):
    """The first of the greatest logits of each part.

    Args:
        logits_NK: float32 [n, k], k = sum(nvec), without NaN.
        nvec_P: int64 [parts].
        actions_NP: int64 [n, parts], out.
    """
    for i in range(len(logits_NK)):
        begin = 0
        for part in range(len(nvec_P)):
            best = begin
            for j in range(begin + 1, begin + nvec_P[part]):
                if logits_NK[i, j] > logits_NK[i, best]:
                    best = j
            actions_NP[i, part] = best - begin
            begin += nvec_P[part]


def sample_gaussian_numpy(logits_NK, noise_NK, actions_NK, logp_N):
    """Reference for sample_gaussian()."""
    mean, log_std = np.split(logits_NK.astype(np.float64), 2, axis=1)
    actions_NK[:] = mean + noise_NK * np.exp(log_std)
    logp_N[:] = -(0.5 * noise_NK.astype(np.float64) ** 2 + log_std + HALF_LOG_2PI).sum(1)


@njit(cache=True, nogil=True)
def sample_gaussian(logits_NK, noise_NK, actions_NK, logp_N):
    """Independent normal numbers, and the logarithm of their density.

    Args:
        logits_NK: float32 [n, 2 k]: means, then log standard deviations.
        noise_NK: float32 [n, k], standard normal.
        actions_NK: float32 [n, k], out.
        logp_N: float32 [n], out.
    """
    k = noise_NK.shape[1]
    for i in range(len(noise_NK)):
        logp = 0.0
        for j in range(k):
            noise, log_std = np.float64(noise_NK[i, j]), np.float64(logits_NK[i, k + j])
            actions_NK[i, j] = logits_NK[i, j] + noise * math.exp(log_std)
            logp -= 0.5 * noise * noise + log_std + HALF_LOG_2PI
        logp_N[i] = logp

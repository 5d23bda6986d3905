"""Categorical actions from logits, for batches so small that torch's cost is its calls."""

import math

import numpy as np
from numba import njit


def sample_categorical_numpy(logits_NK, uniform_N, actions_N, logp_N):
    """Reference for sample_categorical()."""
    for i, logits in enumerate(logits_NK.astype(np.float64)):
        weights = np.exp(logits - logits.max())
        total = np.cumsum(weights)[-1]
        chosen = np.flatnonzero(np.cumsum(weights) > uniform_N[i] * total)
        actions_N[i] = chosen[0] if len(chosen) else 0
        logp_N[i] = logits[actions_N[i]] - logits.max() - math.log(total) if total == total else np.nan


@njit(cache=True, nogil=True)
def sample_categorical(logits_NK, uniform_N, actions_N, logp_N):
    """Draw an action for each row by inverting its cumulative distribution, in float64.

    Args:
        logits_NK: float32 [n, k]; -inf is never drawn. A row with NaN (or +inf) gets logp NaN and action 0.
        uniform_N: float64 [n] in [0, 1).
        actions_N: int64 [n], out.
        logp_N: float32 [n], out: log softmax(logits) of the action.
    """
    n, k = logits_NK.shape
    for i in range(n):
        highest = -np.inf
        for j in range(k):
            highest = max(highest, logits_NK[i, j])
        total = 0.0
        for j in range(k):
            total += math.exp(np.float64(logits_NK[i, j]) - highest)
        if not math.isfinite(total):
            actions_N[i] = 0
            logp_N[i] = np.nan
            continue
        threshold = uniform_N[i] * total
        reached = 0.0
        action = 0
        for j in range(k):
            weight = math.exp(np.float64(logits_NK[i, j]) - highest)
            if weight > 0.0:
                action = j  # the last one possible, should rounding leave the threshold unreached
            reached += weight
            if reached > threshold:
                break
        actions_N[i] = action
        logp_N[i] = np.float64(logits_NK[i, action]) - highest - math.log(total)

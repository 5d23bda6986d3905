"""RLlib's action distributions on the CPU, from random numbers of our own: the same distributions, other draws.

Actions and log-probabilities have the dtypes and shapes that RLlib's connectors give them.
"""

import math
from typing import Protocol

import numpy as np
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
)

from fastmarl.kernels.sample import sample_gaussian
from fastmarl.native._draws import ChoiceDraws
from fastmarl.rllib.acting.draws import partial_of


class OwnSampler(Protocol):
    """Draws from logits, float32 [n, k], C-contiguous."""

    def explore(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Random actions [n, ...], and their log-probabilities, float32 [n]; NaN where logits are no numbers."""

    def exploit(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The likeliest actions [n, ...], and what RLlib gives as their log-probabilities: zeros of the same shape."""


def own_sampler_of(dist_cls: type, rng: np.random.Generator) -> OwnSampler | None:
    """For exactly RLlib's classes of Discrete, MultiDiscrete and Box actions, None for others."""
    if dist_cls is TorchCategorical:
        return OwnChoices(rng, None)
    if dist_cls is TorchDiagGaussian:
        return OwnGaussian(rng)
    base, known = partial_of(dist_cls)
    return OwnChoices(rng, [int(n) for n in known["input_lens"]]) if base is TorchMultiCategorical else None


class OwnChoices:
    """As TorchCategorical, or TorchMultiCategorical: int32 actions.

    Args:
        rng: gives a number for each choice.
        nvec: number of choices of each part of an action; None: actions have no parts.
    """

    def __init__(self, rng: np.random.Generator, nvec: list[int] | None):
        self._draws = ChoiceDraws(rng, nvec)
        self._nvec = nvec

    def explore(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._draws.draw(logits)

    def exploit(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._nvec is None:
            actions = logits.argmax(1).astype(np.int32)
        else:
            parts = np.split(logits, np.cumsum(self._nvec)[:-1], axis=1)
            actions = np.stack([part.argmax(1) for part in parts], axis=1).astype(np.int32)
        return actions, np.zeros_like(actions)


class OwnGaussian:
    """As TorchDiagGaussian: float32 actions; logits are means, then logarithms of standard deviations.

    Args:
        rng: gives a normal number for each part of an action.
    """

    def __init__(self, rng: np.random.Generator):
        self._rng = rng

    def explore(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, k = len(logits), logits.shape[1] // 2
        action_NK, logp_N = np.empty((n, k), np.float32), np.empty(n, np.float32)
        sample_gaussian(logits, self._rng.standard_normal((n, k), np.float32), action_NK, logp_N)
        if not is_finite(action_NK):
            logp_N[np.isnan(action_NK).any(1)] = np.nan
        return action_NK, logp_N

    def exploit(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        action_NK = logits[:, : logits.shape[1] // 2].copy()
        return action_NK, np.zeros_like(action_NK)


def is_finite(numbers: np.ndarray) -> bool:
    """Whether all are; it may take very large ones for infinite."""
    flat = numbers if numbers.ndim == 1 else numbers.reshape(-1)
    return math.isfinite(flat.dot(flat))  # the cheapest way to look at all

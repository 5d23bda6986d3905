"""The same as sampling_torch.py's for the CPU, where calling torch takes longer than most of what it does.

What torch rounds in its own way, or draws, it still does itself: exp, log, sum, softmax, random numbers. What lies
between is arithmetic with one right result, and is done by compiled loops on the same memory.
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Generator, Tensor

from fastmarl.kernels.sample import sample_categorical
from fastmarl.rllib.sampling_torch import LOG_SQRT_2PI, CategoricalSampler, GaussianSampler

MOST_SIZES = 256  # batch sizes to keep memory for
CONSTANT = np.float32(LOG_SQRT_2PI)


class CategoricalRows(CategoricalSampler):
    """As TorchCategorical."""

    def __init__(self) -> None:
        self._memory = Memory()

    def explore(self, logits: Tensor, generator: Generator | None = None) -> tuple[list[Any], Any]:
        """int32 [n] and float32 [n]."""
        logits_NK = _array(logits)
        n, k = logits_NK.shape
        (shifted, sums, log_p, p, clocks), arrays = self._memory.get(n, (k, 1, k, k, k))
        shifted_NK, sum_N1, log_p_NK, p_NK, clock_NK = arrays
        action_N, logp_N = np.empty(n, np.int32), np.empty(n, np.float32)
        _subtract_highest(logits_NK, shifted_NK, logp_N)
        torch.sum(shifted.exp_(), -1, True, out=sums)
        sums.log_()
        _subtract_sums(logits_NK, sum_N1, logp_N, log_p_NK)
        torch.softmax(log_p, -1, out=p)
        clocks.exponential_(generator=generator)
        _first_to_ring(p_NK, clock_NK, log_p_NK, action_N, logp_N)
        return [action_N], logp_N


class OwnCategoricalRows(CategoricalSampler):
    """The distribution of TorchCategorical, from random numbers of our own and in fewer steps.

    Args:
        rng: where they come from.
    """

    def __init__(self, rng: np.random.Generator):
        self._rng = rng

    def explore(self, logits: Tensor, generator: Generator | None = None) -> tuple[list[Any], Any]:
        """int32 [n] and float32 [n]."""
        logits_NK = _array(logits)
        n = len(logits_NK)
        action_N, logp_N = np.empty(n, np.int32), np.empty(n, np.float32)
        sample_categorical(logits_NK, self._rng.random(n), action_N, logp_N)
        return [action_N], logp_N


class GaussianRows(GaussianSampler):
    """As TorchDiagGaussian."""

    def __init__(self) -> None:
        self._memory = Memory()

    def explore(self, logits: Tensor, generator: Generator | None = None) -> tuple[list[Any], Any]:
        """float32 [n, k] and float32 [n]."""
        logits_NK = _array(logits)
        n, k = len(logits_NK), logits_NK.shape[1] // 2
        (std, log_std, noise, terms), (std_NK, log_std_NK, noise_NK, term_NK) = self._memory.get(n, (k, k, k, k))
        torch.exp(logits[:, k:], out=std)
        torch.log(std, out=log_std)
        noise.normal_(generator=generator)
        action_NK = np.empty((n, k), np.float32)
        _move(logits_NK, std_NK, log_std_NK, noise_NK, action_NK, term_NK)
        return [action_NK], terms.sum(-1).numpy()


class Memory:
    """Intermediate results, kept for every batch size: as tensors and as arrays of the same memory."""

    def __init__(self) -> None:
        self._of_size: dict[int, tuple[list[Tensor], list[np.ndarray]]] = {}

    def get(self, n: int, widths: tuple[int, ...]) -> tuple[list[Tensor], list[np.ndarray]]:
        """A float32 [n, width] for each of `widths`, which are always the same."""
        try:
            return self._of_size[n]
        except KeyError:
            if len(self._of_size) >= MOST_SIZES:
                self._of_size.clear()
            arrays = [np.empty((n, width), np.float32) for width in widths]
            with torch.inference_mode(False):  # so that they can be written to in any mode
                tensors = [torch.from_numpy(array) for array in arrays]
            return self._of_size.setdefault(n, (tensors, arrays))


def _array(logits: Tensor) -> np.ndarray:
    return (logits.detach() if logits.requires_grad else logits).numpy()


@njit(cache=True, nogil=True)
def _subtract_highest(logits_NK, shifted_NK, highest_N):
    for i in range(len(logits_NK)):
        highest = logits_NK[i, 0]
        for j in range(1, logits_NK.shape[1]):
            highest = max(highest, logits_NK[i, j])
        highest_N[i] = highest
        for j in range(logits_NK.shape[1]):
            shifted_NK[i, j] = logits_NK[i, j] - highest


@njit(cache=True, nogil=True)
def _subtract_sums(logits_NK, sum_N1, highest_N, log_p_NK):
    for i in range(len(logits_NK)):
        log_sum = sum_N1[i, 0] + highest_N[i]
        for j in range(logits_NK.shape[1]):
            log_p_NK[i, j] = logits_NK[i, j] - log_sum


@njit(cache=True, nogil=True, error_model="numpy")
def _first_to_ring(p_NK, clock_NK, log_p_NK, action_N, logp_N):
    for i in range(len(p_NK)):
        first, highest = 0, p_NK[i, 0] / clock_NK[i, 0]
        for j in range(1, p_NK.shape[1]):
            rate = p_NK[i, j] / clock_NK[i, j]
            if rate > highest:
                first, highest = j, rate
        action_N[i] = first
        logp_N[i] = log_p_NK[i, first]


@njit(cache=True, nogil=True, error_model="numpy")
def _move(logits_NK, std_NK, log_std_NK, noise_NK, action_NK, term_NK):
    for i in range(len(std_NK)):
        for j in range(std_NK.shape[1]):
            mean, std = logits_NK[i, j], std_NK[i, j]
            action = noise_NK[i, j] * std + mean
            offset = action - mean
            action_NK[i, j] = action
            term_NK[i, j] = -(offset * offset) / (np.float32(2) * (std * std)) - log_std_NK[i, j] - CONSTANT

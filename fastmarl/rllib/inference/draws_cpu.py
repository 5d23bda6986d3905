"""CPU versions of the samplers in draws_torch.py: on the CPU, most torch calls have more overhead than computation.

torch still computes the random numbers and all operations with torch-specific rounding: exp, log, sum, softmax. The
arithmetic in between has only one correct result, so it runs in compiled loops on the same memory.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from fastmarl.core.native._rllib_sampling import first_to_ring, move, subtract_highest, subtract_sums, sum_rows
from fastmarl.rllib.inference.draws_torch import (
    LOG_SQRT_2PI,
    CategoricalSampler,
    GaussianSampler,
    LogitSampler,
    MultiCategoricalSampler,
)

MOST_SIZES = 256  # number of batch sizes with cached memory
SUMMED_IN_ORDER = 3  # torch sums up to this many numbers in order, and splits more into partial sums


class RowSampler(LogitSampler):
    """Base class of CPU samplers whose actions are a single array."""

    @cached_property
    def _memory(self) -> Callable[..., tuple[list[Tensor], list[np.ndarray]]]:
        """`new_memory`, cached by batch size."""
        return lru_cache(MOST_SIZES)(new_memory)

    def explore(self, logits: Tensor, generator: Generator | None = None) -> tuple[list[Any], Any]:
        logits_NK = (logits.detach() if logits.requires_grad else logits).numpy()
        actions, logp = self.draw(logits, logits_NK, generator)
        return [actions], logp

    @abstractmethod
    def draw(
        self, logits: Tensor, logits_NK: np.ndarray, generator: Generator | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample actions and return (actions, log-probabilities float32 [n]); see `LogitSampler.explore()`.

        Args:
            logits: float32 [n, k].
            logits_NK: NumPy array that shares the memory of `logits`.
            generator: Random generator, or None for torch's global one.
        """


class CategoricalRows(RowSampler, CategoricalSampler):
    """Samples like RLlib's TorchCategorical."""

    def draw(
        self, logits: Tensor, logits_NK: np.ndarray, generator: Generator | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample actions and return them with their log-probabilities, int32 [n] and float32 [n]."""
        n, k = logits_NK.shape
        (shifted, sums, log_p, p, clocks), arrays = self._memory(n, k, 1, k, k, k)
        shifted_NK, sum_N1, log_p_NK, p_NK, clock_NK = arrays
        action_N, logp_N = np.empty(n, np.int32), np.empty(n, np.float32)
        subtract_highest(logits_NK, shifted_NK, logp_N)
        shifted.exp_()
        if k <= SUMMED_IN_ORDER:
            sum_rows(shifted_NK, sum_N1)
        else:
            torch.sum(shifted, -1, True, out=sums)
        sums.log_()
        subtract_sums(logits_NK, sum_N1, logp_N, log_p_NK)
        torch.softmax(log_p, -1, out=p)
        clocks.exponential_(generator=generator)
        first_to_ring(p_NK, clock_NK, log_p_NK, action_N, logp_N)
        return action_N, logp_N


class GaussianRows(RowSampler, GaussianSampler):
    """Samples like RLlib's TorchDiagGaussian."""

    def draw(
        self, logits: Tensor, logits_NK: np.ndarray, generator: Generator | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample actions and return them with their log-probabilities, float32 [n, k] and float32 [n]."""
        n, k = len(logits_NK), logits_NK.shape[1] // 2
        (std, log_std, noise, terms), (std_NK, log_std_NK, noise_NK, term_NK) = self._memory(n, k, k, k, k)
        torch.exp(logits[:, k:], out=std)
        torch.log(std, out=log_std)
        noise.normal_(generator=generator)
        action_NK = np.empty((n, k), np.float32)
        move(logits_NK, std_NK, log_std_NK, noise_NK, LOG_SQRT_2PI, action_NK, term_NK)
        return action_NK, terms.sum(-1).numpy()


class MultiCategoricalRows(RowSampler, MultiCategoricalSampler):
    """Samples like RLlib's TorchMultiCategorical."""

    def __init__(self, sizes: list[int]):
        super().__init__(sizes)
        self._rows = CategoricalRows()

    def draw(
        self, logits: Tensor, logits_NK: np.ndarray, generator: Generator | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample actions and return them with their log-probabilities, int32 [n, components] and float32 [n]."""
        parts = [part.contiguous() for part in logits.split(self._sizes, -1)]
        drawn = [self._rows.draw(part, part.numpy(), generator) for part in parts]
        logp = torch.stack([torch.from_numpy(part_logp_N) for _, part_logp_N in drawn]).sum(0)
        return np.stack([action_N for action_N, _ in drawn], -1), logp.numpy()


def new_memory(n: int, *widths: int) -> tuple[list[Tensor], list[np.ndarray]]:
    """Allocate float32 [n, width] for each width; return tensors and arrays that share memory."""
    arrays = [np.empty((n, width), np.float32) for width in widths]
    with torch.inference_mode(False):  # so that the tensors are writable in any mode
        return [torch.from_numpy(array) for array in arrays], arrays

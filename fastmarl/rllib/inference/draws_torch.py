"""RLlib action distributions in fewer operations: bit-identical, with the same samples from the torch generator.

`torch.distributions` computes more than needed for a sample and its log-probability, and `torch.multinomial` checks its
input twice. The samplers keep only the operations that affect the results, exactly as in torch and in the same order.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import tree  # type: ignore[import-untyped]
from ray.rllib.core.columns import Columns
from torch import Generator, Tensor

from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.core.store.block import Key

LOG_SQRT_2PI = math.log(math.sqrt(2 * math.pi))


class LogitSampler(ABC):
    """Base class of samplers that draw actions from logits, float32 [n, k], C-contiguous.

    Actions and log-probabilities are tensors on the device of the logits, or arrays. If `generator` is None, the global
    torch generator is used.
    """

    keys: Sequence[Key] = (Columns.ACTIONS,)  # column of each leaf of the actions

    @abstractmethod
    def explore(self, logits: Tensor, generator: Generator | None = None) -> tuple[list[Any], Any]:
        """Sample actions and return (action leaves [n, ...], log-probabilities [n]).

        Log-probabilities are not finite where RLlib would raise an error because of NaN.
        """

    def exploit(self, logits: Tensor) -> tuple[list[Any], Any] | None:
        """Return the leaves of the most likely actions and RLlib's log-probabilities, or None if RLlib must be used."""
        return None


class CategoricalSampler(LogitSampler):
    """Samples like RLlib's TorchCategorical."""

    def explore(self, logits: Tensor, generator: Generator | None = None) -> tuple[list[Any], Any]:
        highest = logits.amax(-1, True)
        log_p = logits - (logits - highest).exp_().sum(-1, True).log_().add_(highest)
        # torch.multinomial() samples one choice per row as the first of k exponential clocks to ring.
        ringing = log_p.softmax(-1).div_(torch.empty_like(log_p).exponential_(generator=generator))
        action = ringing.argmax(-1, True)
        return [action.squeeze(-1)], log_p.gather(-1, action).squeeze(-1)

    def exploit(self, logits: Tensor) -> tuple[list[Tensor], Tensor]:
        action = logits.argmax(-1)
        return [action], torch.zeros_like(action)


class GaussianSampler(LogitSampler):
    """Samples like RLlib's TorchDiagGaussian."""

    def explore(self, logits: Tensor, generator: Generator | None = None) -> tuple[list[Any], Any]:
        mean, log_std = logits.chunk(2, -1)
        std = log_std.exp()
        action = torch.empty_like(std).normal_(generator=generator).mul_(std).add_(mean)
        offset = action - mean
        minus_two_variances = std.mul(std).mul_(-2)  # sign and factor cause no rounding; only NaN changes its sign
        terms = offset.mul_(offset).div_(minus_two_variances).sub_(std.log_()).sub_(LOG_SQRT_2PI)
        return [action], terms.sum(-1)

    def exploit(self, logits: Tensor) -> tuple[list[Tensor], Tensor]:
        mean = logits.chunk(2, -1)[0].contiguous()
        return [mean], torch.zeros_like(mean)


class MultiCategoricalSampler(LogitSampler):
    """Samples like RLlib's TorchMultiCategorical.

    Args:
        sizes: Number of choices for each component of the action.
    """

    def __init__(self, sizes: list[int]):
        self._sizes = sizes

    def explore(self, logits: Tensor, generator: Generator | None = None) -> tuple[list[Any], Any]:
        one = CategoricalSampler()
        drawn = [one.explore(part, generator) for part in logits.split(self._sizes, -1)]
        return [torch.stack([action for (action,), _ in drawn], -1)], torch.stack([logp for _, logp in drawn]).sum(0)

    def exploit(self, logits: Tensor) -> tuple[list[Tensor], Tensor]:
        action = torch.stack([part.argmax(-1) for part in logits.split(self._sizes, -1)], -1)
        return [action], torch.zeros_like(action)


class StructSampler(LogitSampler):
    """Samples like RLlib's TorchMultiDistribution.

    Args:
        parts: Samplers of the parts, in the order of `tree.flatten`; all return tensors, or all return arrays.
        sizes: Number of logits of each part.
        struct: Any nest with the structure of an action.
    """

    def __init__(self, parts: list[LogitSampler], sizes: list[int], struct: Any):
        places = flatten_struct(tree.unflatten_as(struct, list(range(len(parts)))))
        self.keys = [(Columns.ACTIONS, *path) for path, _ in places]
        self._order = [place for _, place in places]
        self._parts = parts
        self._sizes = sizes

    def explore(self, logits: Tensor, generator: Generator | None = None) -> tuple[list[Any], Any]:
        drawn = [
            part.explore(values.contiguous(), generator)
            for part, values in zip(self._parts, logits.split(self._sizes, -1), strict=True)
        ]
        logp = sum(part_logp for _, part_logp in drawn)  # starts at 0, as in RLlib: 0 + -0.0 is 0.0
        return [drawn[place][0][0] for place in self._order], logp

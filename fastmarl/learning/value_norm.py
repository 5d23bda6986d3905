"""Normalisation of value targets and advantages."""

import torch
from torch import Tensor

from fastmarl.core.errors import BatchError, ConfigError
from fastmarl.core.objects.public import public

LEAST_VARIANCE = 1e-2


def normalized(advantages: Tensor, mask: Tensor | None = None, *, min_std: float = 1e-6) -> Tensor:
    """Return advantages minus their mean, divided by their standard deviation.

    The population standard deviation is used, so that a single advantage becomes 0; the sample deviation would be NaN.

    Args:
        advantages: Tensor of any shape, possibly empty.
        mask: bool of the same shape, True for elements that count; all others become 0. None if all count.
        min_std: Lower bound on the divisor.
    """
    counted = advantages if mask is None else advantages[mask]
    if not counted.numel():
        return torch.zeros_like(advantages)
    found = (advantages - counted.mean()) / counted.std(correction=0).clamp(min=min_std)
    return found if mask is None else found.masked_fill(~mask, 0.0)


@public("fastmarl.learning")
class ValueNorm(torch.nn.Module):
    """Running mean and variance of value targets, for a value function that predicts normalised values.

    As in Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative, Multi-Agent Games", they are computed
    from moving averages of the targets and their squares, corrected for the initial value of 0. As for any module,
    `state_dict()` contains the state.

    Args:
        beta: Decay of the moving averages per target, in [0, 1).

    Raises:
        ConfigError: If `beta` is not in [0, 1).
    """

    mean: Tensor
    mean_square: Tensor
    weight: Tensor

    def __init__(self, beta: float = 0.99999):
        super().__init__()
        if not 0 <= beta < 1:
            raise ConfigError(f"beta must be in [0, 1), got {beta}")
        self.beta = beta
        for name in ("mean", "mean_square", "weight"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, targets: Tensor) -> None:
        """Update the averages with targets of any shape, in their original scale.

        Raises:
            BatchError: If a target is NaN or infinite, which would corrupt the averages permanently. The averages are
                not changed.
        """
        if not targets.numel():
            return
        if not torch.isfinite(targets).all():
            raise BatchError(f"expected finite targets, got {int((~torch.isfinite(targets)).sum())} of "
                             f"{targets.numel()} that are NaN or infinite; check the rewards")  # fmt: skip
        kept = self.beta ** targets.numel()
        of_batch = targets.double()
        self.mean.lerp_(of_batch.mean().to(self.mean), 1 - kept)  # float32 after module.float()
        self.mean_square.lerp_(of_batch.square().mean().to(self.mean_square), 1 - kept)
        self.weight.lerp_(torch.ones_like(self.weight), 1 - kept)

    def normalize(self, values: Tensor) -> Tensor:
        """Convert values in their original scale to normalised values; unchanged before the first `update()`."""
        mean, std = self._mean_and_std()
        return (values - mean) / std

    def denormalize(self, values: Tensor) -> Tensor:
        """Convert normalised values to the original scale; unchanged before the first `update()`."""
        mean, std = self._mean_and_std()
        return values * std + mean

    def _mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Return the corrected (mean, standard deviation), float32."""
        if not self.weight:
            return torch.zeros(()), torch.ones(())
        mean = self.mean / self.weight
        variance = (self.mean_square / self.weight - mean.square()).clamp(min=LEAST_VARIANCE)
        return mean.float(), variance.sqrt().float()

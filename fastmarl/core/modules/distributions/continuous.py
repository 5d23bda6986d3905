"""Action distributions over real numbers."""

import math
from typing import ClassVar

import gymnasium as gym
import torch
from torch import Tensor

from fastmarl.core.modules.distributions.base import Deterministic, Distribution, event_dims, flat, shaped
from fastmarl.core.objects.public import public

LOG_2PI = math.log(2 * math.pi)


@public("fastmarl.distributions")
class DiagGaussian(Distribution):
    """Independent normal distributions for Box spaces; logits are the means, followed by the log standard deviations.

    Actions are float32 [B, *shape] and unbounded. The class attribute `shape` is None for one axis of any length.

    Args:
        loc: Means, float [B, n].
        log_std: Log standard deviations, float [B, n].
    """

    shape: ClassVar[tuple[int, ...] | None] = None

    def __init__(self, loc: Tensor, log_std: Tensor):
        self.loc = loc
        self.log_std = log_std

    @staticmethod
    def required_input_dim(action_space: gym.Space) -> int:
        return 2 * math.prod(action_space.shape or ())

    @classmethod
    def from_logits(cls, logits: Tensor) -> "DiagGaussian":
        return cls(*logits.float().chunk(2, dim=-1))

    @classmethod
    def sample_and_logp(cls, logits: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        loc, log_std = logits.float().chunk(2, dim=-1)
        noise = torch.randn(loc.shape, generator=generator, device=loc.device)
        actions = torch.addcmul(loc, noise, log_std.exp())
        surprise = torch.addcmul(log_std, noise, noise, value=0.5).sum(-1)
        return shaped(actions, cls.shape), torch.rsub(surprise, -0.5 * LOG_2PI * loc.shape[1])

    @classmethod
    def deterministic(cls, logits: Tensor) -> Tensor:
        return shaped(logits[..., : logits.shape[-1] // 2].float(), cls.shape)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        with torch.no_grad():
            return self.rsample(generator)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(self.loc.shape, generator=generator, device=self.loc.device)
        return shaped(torch.addcmul(self.loc, noise, self.log_std.exp()), self.shape)

    def logp(self, value: Tensor) -> Tensor:
        distance = (flat(value, self.shape) - self.loc) * torch.exp(-self.log_std)
        return -(0.5 * (distance * distance + LOG_2PI) + self.log_std).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 * (1 + LOG_2PI)).sum(-1)

    def kl(self, other: "DiagGaussian") -> Tensor:
        squares = torch.exp(2 * self.log_std) + (self.loc - other.loc) ** 2
        return (other.log_std - self.log_std + 0.5 * squares * torch.exp(-2 * other.log_std) - 0.5).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(shaped(self.loc, self.shape), event_dims=event_dims(self.shape))

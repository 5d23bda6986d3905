"""Base class of action distributions."""

import copyreg
import math
from collections.abc import Hashable
from functools import cache
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from fastmarl.core.objects.public import public

NEEDS = ("required_input_dim", "from_logits")


class _Kind(type):
    """Metaclass of distributions, through which `_reduce` can pickle the classes that `bind` creates at run time."""


def _reduce(kind: _Kind) -> Any:
    return (bind, vars(kind)["bound"]) if "bound" in vars(kind) else kind.__qualname__


copyreg.pickle(_Kind, _reduce)  # type: ignore[arg-type]


@cache
def bind(kind: type["Distribution"], attributes: tuple[tuple[str, Hashable], ...]) -> type["Distribution"]:
    """Return a cached, picklable subclass of `kind` with these class attributes."""
    values = ", ".join(f"{name}={value!r}" for name, value in attributes)
    name = f"{kind.__name__}[{values}]"
    return _Kind(name, (kind,), {**dict(attributes), "bound": (kind, attributes)})  # type: ignore[return-value]


@public("fastmarl.distributions")
class Distribution(metaclass=_Kind):
    """Base class of action distributions. In shapes, B stands for any number of batch axes.

    For sampling, custom distributions must implement `from_logits`, `sample`, `logp` and `to_deterministic`.
    """

    @staticmethod
    def required_input_dim(action_space: gym.Space) -> int:
        """Return the number of logits for `action_space`."""
        raise NotImplementedError

    @classmethod
    def from_logits(cls, logits: Tensor) -> "Distribution":
        """Create a distribution from the network outputs `logits`, float [B, required_input_dim]."""
        raise NotImplementedError

    @classmethod
    def sample_and_logp(cls, logits: Tensor, generator: torch.Generator | None = None) -> tuple[Any, Tensor]:
        """Sample actions and compute their log-probabilities.

        Args:
            logits: float [n, required_input_dim]; -inf and `torch.finfo(dtype).min` mark masked choices.
            generator: Random generator on the device of the logits; None for torch's global one.

        Returns:
            (actions [n, *action shape], logp float32 [n]). Rows with NaN or +inf in their logits have logp NaN.
        """
        distribution = cls.from_logits(logits)
        actions = distribution.sample(generator)
        return actions, distribution.logp(actions)

    @classmethod
    def deterministic(cls, logits: Tensor) -> Any:
        """Return the most probable actions [n, *action shape] for logits [n, required_input_dim]."""
        return cls.from_logits(logits).to_deterministic().sample()

    def sample(self, generator: torch.Generator | None = None) -> Any:
        """Sample actions [B, *action shape] without gradient, using `generator` (None: torch's global one)."""
        raise NotImplementedError

    def rsample(self, generator: torch.Generator | None = None) -> Any:
        """Sample actions that are differentiable with respect to the logits, if the distribution supports it.

        `generator` is as in `sample()`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not support rsample()")

    def logp(self, value: Any) -> Tensor:
        """Return the log-probability (or log-density) [B] of actions `value` [B, *action shape]."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Return the entropy [B] in nats."""
        raise NotImplementedError

    def kl(self, other: Any) -> Tensor:
        """Return the Kullback-Leibler divergence KL(self || other) [B] for a distribution of the same class."""
        raise NotImplementedError

    def to_deterministic(self) -> "Distribution":
        """Return a distribution that always samples the most probable action."""
        raise NotImplementedError


def num_dist_inputs(kind: type[Distribution], action_space: gym.Space | None) -> int | None:
    """Return the number of logits that a distribution of class `kind` needs for `action_space`.

    None if it is unknown, because a class overrides `from_logits()` but not `required_input_dim()`.
    """
    lineage = kind.__mro__
    says, takes = (next(i for i, base in enumerate(lineage) if name in vars(base)) for name in NEEDS)
    if action_space is None or says > takes or lineage[says] is Distribution:
        return None
    return kind.required_input_dim(action_space)


@public("fastmarl.distributions")
class Deterministic(Distribution):
    """Always samples `loc`, with log-probability 0. For Box, the network outputs are the actions.

    Args:
        loc: Actions [B, *action shape].
        event_dims: Number of axes of the action shape.
    """

    def __init__(self, loc: Tensor, event_dims: int = 1):
        self.loc = loc
        self._batch_shape = loc.shape[: loc.dim() - event_dims]

    @staticmethod
    def required_input_dim(action_space: gym.Space) -> int:
        return math.prod(action_space.shape or ())

    @classmethod
    def from_logits(cls, logits: Tensor) -> "Deterministic":
        return cls(logits)

    @classmethod
    def sample_and_logp(cls, logits: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return logits, logits.new_zeros(len(logits), dtype=torch.float32)

    @classmethod
    def deterministic(cls, logits: Tensor) -> Tensor:
        return logits

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.loc.detach()

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.loc

    def logp(self, value: Tensor) -> Tensor:
        return self.loc.new_zeros(self._batch_shape, dtype=torch.float32)

    def entropy(self) -> Tensor:
        return self.loc.new_zeros(self._batch_shape, dtype=torch.float32)

    def to_deterministic(self) -> "Deterministic":
        return self


def flat(value: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """Reshape [B, *shape] to [B, size]; if `shape` is None, `value` already has this form."""
    return value if shape is None else value.reshape(*value.shape[: value.dim() - len(shape)], -1)


def shaped(value: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """Reshape [B, size] to [B, *shape]; if `shape` is None, return `value` unchanged."""
    return value if shape is None else value.reshape(*value.shape[:-1], *shape)


def event_dims(shape: tuple[int, ...] | None) -> int:
    """Return the number of axes of `shape`, or 1 if it is None."""
    return 1 if shape is None else len(shape)

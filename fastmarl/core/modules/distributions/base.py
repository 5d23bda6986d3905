"""What all action distributions have in common."""

import copyreg
import math
from collections.abc import Hashable
from functools import cache
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from fastmarl.core.public import public

NEEDS = ("required_input_dim", "from_logits")


class _Kind(type):
    """The type of distributions; `bind` adds classes that no module holds, see `_reduce`."""


def _reduce(kind: _Kind) -> Any:
    return (bind, vars(kind)["bound"]) if "bound" in vars(kind) else kind.__qualname__


copyreg.pickle(_Kind, _reduce)  # type: ignore[arg-type]


@cache
def bind(kind: type["Distribution"], attributes: tuple[tuple[str, Hashable], ...]) -> type["Distribution"]:
    """The subclass of `kind` with these class attributes; always the same one, and it can be pickled."""
    values = ", ".join(f"{name}={value!r}" for name, value in attributes)
    name = f"{kind.__name__}[{values}]"
    return _Kind(name, (kind,), {**dict(attributes), "bound": (kind, attributes)})  # type: ignore[return-value]


@public("fastmarl.distributions")
class Distribution(metaclass=_Kind):
    """Base of all action distributions. B stands for any number of batch axes.

    A kind of your own needs `from_logits`, `sample`, `logp` and `to_deterministic` to be sampled from.
    """

    @staticmethod
    def required_input_dim(action_space: gym.Space) -> int:
        """Number of logits for this action space."""
        raise NotImplementedError

    @classmethod
    def from_logits(cls, logits: Tensor) -> "Distribution":
        """From a net's outputs, float [B, required_input_dim]."""
        raise NotImplementedError

    @classmethod
    def sample_and_logp(cls, logits: Tensor, generator: torch.Generator | None = None) -> tuple[Any, Tensor]:
        """Random actions and their log-probabilities.

        Args:
            logits: float [n, required_input_dim]; -inf and `torch.finfo(dtype).min` are masks: never drawn.
            generator: of the logits' device. None: torch's global one.
        Returns:
            (actions [n, *action shape], logp float32 [n]). A row whose logits hold NaN or +inf has logp NaN.
        """
        distribution = cls.from_logits(logits)
        actions = distribution.sample(generator)
        return actions, distribution.logp(actions)

    @classmethod
    def deterministic(cls, logits: Tensor) -> Any:
        """The most likely actions [n, *action shape] for logits [n, required_input_dim]."""
        return cls.from_logits(logits).to_deterministic().sample()

    def sample(self, generator: torch.Generator | None = None) -> Any:
        """Actions [B, *action shape], without gradient."""
        raise NotImplementedError

    def rsample(self, generator: torch.Generator | None = None) -> Any:
        """Samples with a gradient to the logits, where the kind has such."""
        raise NotImplementedError(f"{type(self).__name__} has no samples with gradient")

    def logp(self, value: Any) -> Tensor:
        """Log-probability (density) [B] of actions [B, *action shape]."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """[B], in nats."""
        raise NotImplementedError

    def kl(self, other: Any) -> Tensor:
        """Kullback-Leibler divergence KL(self || other) [B] from one of the same kind."""
        raise NotImplementedError

    def to_deterministic(self) -> "Distribution":
        """One that always gives the most likely action."""
        raise NotImplementedError


def n_logits_of(kind: type[Distribution], action_space: gym.Space | None) -> int | None:
    """How many logits a distribution needs for this action space.

    None: that is not known, for `from_logits()` was overridden, and `required_input_dim()` with it was not.
    """
    lineage = kind.__mro__
    says, takes = (next(i for i, base in enumerate(lineage) if name in vars(base)) for name in NEEDS)
    if action_space is None or says > takes or lineage[says] is Distribution:
        return None
    return kind.required_input_dim(action_space)


@public("fastmarl.distributions")
class Deterministic(Distribution):
    """Always `loc`, with log-probability 0. For Box, the net's outputs are the actions.

    Args:
        loc: [B, *action shape].
        event_dims: number of axes of the action shape.
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
    """[B, *shape] -> [B, size]; None: it has one axis already."""
    return value if shape is None else value.reshape(*value.shape[: value.dim() - len(shape)], -1)


def shaped(value: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """[B, size] -> [B, *shape]."""
    return value if shape is None else value.reshape(*value.shape[:-1], *shape)


def event_dims(shape: tuple[int, ...] | None) -> int:
    """Number of axes of `shape`; None: one."""
    return 1 if shape is None else len(shape)

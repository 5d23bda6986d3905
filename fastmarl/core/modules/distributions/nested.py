"""Distributions over Dict and Tuple spaces, and the choice of a space's default distribution."""

from collections.abc import Callable
from functools import reduce
from itertools import accumulate, pairwise
from operator import add
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.distributions.base import Distribution, bind
from fastmarl.core.modules.distributions.continuous import DiagGaussian
from fastmarl.core.modules.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import leaf_spaces
from fastmarl.core.spaces.masks import choices_of


@public("fastmarl.distributions")
class MultiDistribution(Distribution):
    """For Dict and Tuple: independent components, whose logits are concatenated in the order of the space.

    Actions are nested like the space; log-probabilities, entropies and KL divergences are sums over the components.

    Class attributes, set by `get_action_dist_cls`:
        keys: Keys of the Dict; None for a Tuple.
        kinds: Distributions of the components.
        input_dims: Number of logits of each component.
    """

    keys: ClassVar[tuple | None]
    kinds: ClassVar[tuple[type[Distribution], ...]]
    input_dims: ClassVar[tuple[int, ...]]

    def __init__(self, components: list[Distribution]):
        self.components = components

    @staticmethod
    def required_input_dim(action_space: gym.Space) -> int:
        return sum(get_action_dist_cls(action_space).input_dims)  # type: ignore[attr-defined]

    @classmethod
    def from_logits(cls, logits: Tensor) -> "MultiDistribution":
        return cls([kind.from_logits(component) for kind, component in cls._split(logits)])

    @classmethod
    def sample_and_logp(cls, logits: Tensor, generator: torch.Generator | None = None) -> tuple[Any, Tensor]:
        sampled = [kind.sample_and_logp(component, generator) for kind, component in cls._split(logits)]
        return cls._nest([actions for actions, _ in sampled]), reduce(add, [logp for _, logp in sampled])

    @classmethod
    def deterministic(cls, logits: Tensor) -> Any:
        return cls._nest([kind.deterministic(component) for kind, component in cls._split(logits)])

    @classmethod
    def _split(cls, logits: Tensor) -> list[tuple[type[Distribution], Tensor]]:
        return list(zip(cls.kinds, logits.split(cls.input_dims, dim=-1), strict=True))

    @classmethod
    def _nest(cls, values: list) -> Any:
        return tuple(values) if cls.keys is None else dict(zip(cls.keys, values, strict=True))

    def sample(self, generator: torch.Generator | None = None) -> Any:
        return self._nest([component.sample(generator) for component in self.components])

    def rsample(self, generator: torch.Generator | None = None) -> Any:
        return self._nest([component.rsample(generator) for component in self.components])

    def logp(self, value: Any) -> Tensor:
        # Recorded actions omit empty components.
        if self.keys is None:
            values = [*value, *[()] * (len(self.components) - len(value))]
        else:
            values = [value.get(key, {}) if isinstance(component, Nothing) else value[key]
                      for key, component in zip(self.keys, self.components, strict=True)]  # fmt: skip
        return reduce(add, [component.logp(x) for component, x in zip(self.components, values, strict=True)])

    def entropy(self) -> Tensor:
        return reduce(add, [component.entropy() for component in self.components])

    def kl(self, other: "MultiDistribution") -> Tensor:
        return reduce(add, [mine.kl(theirs) for mine, theirs in zip(self.components, other.components, strict=True)])

    def to_deterministic(self) -> "MultiDistribution":
        return type(self)([component.to_deterministic() for component in self.components])


class Nothing(Distribution):
    """For an empty Dict or Tuple inside another space: always {} or (), with log-probability 0.

    The class attribute `is_dict` is True for {}, False for ().
    """

    is_dict: ClassVar[bool]

    def __init__(self, zeros: Tensor):
        self._zeros = zeros  # float32 [B]

    @staticmethod
    def required_input_dim(action_space: gym.Space) -> int:
        return 0

    @classmethod
    def from_logits(cls, logits: Tensor) -> "Nothing":
        return cls(logits.new_zeros(logits.shape[:-1], dtype=torch.float32))

    def sample(self, generator: torch.Generator | None = None) -> Any:
        return {} if self.is_dict else ()

    rsample = sample

    def logp(self, value: Any) -> Tensor:
        return self._zeros

    def entropy(self) -> Tensor:
        return self._zeros

    def kl(self, other: Any) -> Tensor:
        return self._zeros

    def to_deterministic(self) -> "Nothing":
        return self


def choice_slices(kind: type[Distribution], begin: int = 0, end: int | None = None) -> list[slice]:
    """Return the slice of logits of each categorical choice in `kind`, whose logits are at `begin` to `end`.

    Logits of any other distribution are omitted.
    """
    bound, attributes = vars(kind).get("bound", (kind, ()))
    given = dict(attributes)
    if bound is MultiDistribution:
        kinds, sizes = given["kinds"], given["input_dims"]
    elif bound is MultiCategorical:
        sizes = given["nvec"]
        kinds = (Categorical,) * len(sizes)
    else:
        return [slice(begin, end)] if bound is Categorical else []
    components = zip(kinds, pairwise(accumulate(sizes, initial=begin)), strict=True)
    return [found for component, (first, last) in components for found in choice_slices(component, first, last)]


def get_action_dist_cls(action_space: gym.Space) -> type[Distribution]:
    """Return the distribution that RLlib would choose for `action_space`. Equal spaces share the same picklable class.

    Discrete: Categorical. MultiDiscrete: MultiCategorical. MultiBinary: Bernoulli. Float Box: DiagGaussian.
    Dict and Tuple: MultiDistribution of these.

    Raises:
        ConfigError: If the space has another type.
    """
    for space_type, choose in _CHOICES.items():
        if isinstance(action_space, space_type):
            return choose(action_space)
    raise ConfigError(
        f"no action distribution for {action_space!r}; use a Discrete, MultiDiscrete, MultiBinary or Box space, or a "
        f"Dict or Tuple of these, or let the module return 'actions'"
    )


def _multi_categorical(space: Any) -> type[Distribution]:
    return bind(MultiCategorical, (("nvec", tuple(choices_of(space))), ("shape", tuple(space.shape))))


def _bernoulli(space: Any) -> type[Distribution]:
    return Bernoulli if len(space.shape) == 1 else bind(Bernoulli, (("shape", tuple(space.shape)),))


def _gaussian(space: Any) -> type[Distribution]:
    if not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"no action distribution for {space!r}: a Box must have a float dtype; for integer actions, use Discrete "
            f"or MultiDiscrete, or let the module return 'actions'"
        )
    return DiagGaussian if len(space.shape) == 1 else bind(DiagGaussian, (("shape", tuple(space.shape)),))


def _nothing(space: Any) -> type[Distribution]:
    return bind(Nothing, (("is_dict", isinstance(space, gym.spaces.Dict)),))


def _multi(space: Any) -> type[Distribution]:
    keys = tuple(space.spaces) if isinstance(space, gym.spaces.Dict) else None
    entries = space.spaces if keys is None else tuple(space.spaces.values())
    if not entries:
        raise ConfigError(f"no action distribution for {space!r}: the space is empty")
    kinds = tuple(get_action_dist_cls(entry) if leaf_spaces(entry) else _nothing(entry) for entry in entries)
    input_dims = tuple(kind.required_input_dim(entry) for kind, entry in zip(kinds, entries, strict=True))
    return bind(MultiDistribution, (("keys", keys), ("kinds", kinds), ("input_dims", input_dims)))


_CHOICES: dict[type[gym.Space], Callable[[Any], type[Distribution]]] = {
    gym.spaces.Discrete: lambda space: Categorical,
    gym.spaces.MultiDiscrete: _multi_categorical,
    gym.spaces.MultiBinary: _bernoulli,
    gym.spaces.Box: _gaussian,
    gym.spaces.Dict: _multi,
    gym.spaces.Tuple: _multi,
}

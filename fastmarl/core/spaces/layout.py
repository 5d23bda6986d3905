"""The leaves of nested Gymnasium spaces and their values."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.errors import ConfigError
from fastmarl.core.spaces.structs import Index, Path
from fastmarl.core.spaces.values import can_hold

FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Leaf:
    """A single array of a nested value.

    Attributes:
        sizes: Number of entries of each container on the path; -1 if its space may accept more.
        any_form: True if a space on the path overrides `contains()`, and so may accept numbers in other forms; see
            `values.converted()`.
    """

    path: Path
    sizes: tuple[int, ...]
    dtype: np.dtype
    shape: tuple[int, ...]
    any_form: bool = field(default=False, compare=False)


class RowLayout:
    """The leaves of a space, in the order of its dicts and tuples and in native byte order.

    Leaves that are not arrays (Text, Graph, Sequence, ...) have dtype object and shape ().

    Args:
        space: Any gymnasium space.
        keep_float64: If False, float64 leaves become float32, torch's default dtype.
    """

    def __init__(self, space: gym.Space, *, keep_float64: bool = True):
        self.space = space
        self.leaves = tuple(_leaves(space))
        if not keep_float64:
            self.leaves = tuple(
                replace(leaf, dtype=FLOAT32 if leaf.dtype == np.float64 else leaf.dtype) for leaf in self.leaves
            )
        if not self.leaves:
            raise ConfigError(f"the space {space} has no leaves, so its values cannot be recorded; use a space with at "
                              f"least one entry")  # fmt: skip
        self._is_leaf = not self.leaves[0].path

    def nest(self, arrays: list) -> Any:
        """Nest the arrays of the leaves like the space: a single array, or dicts and tuples of arrays."""
        return arrays[0] if self._is_leaf else _nest(self.space, iter(arrays))

    def leaves_of(self, value: Any) -> list:
        """Reverse `nest()`. Raises KeyError, IndexError or TypeError if a leaf is missing."""
        return [reduce(getitem, leaf.path, value) for leaf in self.leaves]


def has_own_contains(space: gym.Space) -> bool:
    """Return True if `contains()` is not inherited from Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."""
    return getattr(space.contains, "__func__", space.contains) not in _CONTAINS


ARRAY_SPACES = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
_CONTAINS = {kind.contains for kind in (*ARRAY_SPACES, gym.spaces.Dict, gym.spaces.Tuple)}


def _leaves(
    space: gym.Space, path: Path = (), sizes: tuple[int, ...] = (), *, any_form: bool = False
) -> Iterator[Leaf]:
    if not isinstance(space, gym.Space):
        raise ConfigError(f"expected a gymnasium space, got {space!r}")
    is_own = has_own_contains(space)
    any_form = any_form or is_own
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        parts: Any = space.spaces
        pairs = parts.items() if isinstance(parts, dict) else [(Index(i), each) for i, each in enumerate(parts)]
        for key, part in pairs:
            yield from _leaves(part, (*path, key), (*sizes, -1 if is_own else len(parts)), any_form=any_form)
    elif isinstance(space, ARRAY_SPACES):
        assert space.shape is not None and space.dtype is not None
        yield Leaf(path, sizes, np.dtype(space.dtype).newbyteorder("="), tuple(space.shape), any_form)
    else:
        yield Leaf(path, sizes, np.dtype(object), ())


def _nest(space: gym.Space, arrays: Iterator[np.ndarray]) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _nest(child, arrays) for key, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_nest(child, arrays) for child in space.spaces)
    return next(arrays)


def leaf_spaces(space: gym.Space) -> list[gym.Space]:
    """Return the spaces of the leaves, in the order of `RowLayout.leaves`."""
    if isinstance(space, gym.spaces.Dict):
        return [leaf for child in space.spaces.values() for leaf in leaf_spaces(child)]
    if isinstance(space, gym.spaces.Tuple):
        return [leaf for child in space.spaces for leaf in leaf_spaces(child)]
    return [space]


def serves(made_for: tuple[gym.Space, gym.Space], spaces: tuple[gym.Space, gym.Space], *, bounds: bool) -> bool:
    """Return True if a module made for the spaces `made_for` can act for agents with the spaces `spaces`.

    Both are pairs (observation space, action space), which must be equal, except for the bounds of Boxes and for dtypes
    that can be cast.

    Args:
        bounds: True if action bounds must be equal, because actions are scaled or clipped to them.
    """
    (observed, acted), (other_observed, other_acted) = made_for, spaces
    return _takes(observed, other_observed, bounds=False) and _takes(other_acted, acted, bounds=bounds)


def _takes(space: gym.Space, other: gym.Space, *, bounds: bool) -> bool:
    """Return True if both spaces have the same leaves and choices, and values of `other` can be cast to `space`."""
    if space == other:
        return True
    leaves, other_leaves = tuple(_leaves(space)), tuple(_leaves(other))
    if [(leaf.path, leaf.shape) for leaf in leaves] != [(leaf.path, leaf.shape) for leaf in other_leaves]:
        return False
    pairs = zip(leaf_spaces(space), leaf_spaces(other), strict=True)
    dtypes = zip(leaves, other_leaves, strict=True)
    return all(_are_alike(mine, theirs, bounds) for mine, theirs in pairs) and all(
        can_hold(mine.dtype, np.empty(0, theirs.dtype)) for mine, theirs in dtypes
    )


def _are_alike(leaf: gym.Space, other: gym.Space, bounds: bool) -> bool:
    if not (isinstance(leaf, gym.spaces.Box) and isinstance(other, gym.spaces.Box)):
        return leaf == other
    return not bounds or (np.allclose(leaf.low, other.low) and np.allclose(leaf.high, other.high))


def with_leaf_spaces(space: gym.Space, leaves: Iterable[gym.Space]) -> gym.Space:
    """Replace the leaves of a space with `leaves`, in the order of `leaf_spaces()`."""
    remaining = iter(leaves)

    def rebuilt(child: gym.Space) -> gym.Space:
        if isinstance(child, gym.spaces.Dict):
            return gym.spaces.Dict(OrderedDict((key, rebuilt(each)) for key, each in child.spaces.items()))
        if isinstance(child, gym.spaces.Tuple):
            return gym.spaces.Tuple([rebuilt(each) for each in child.spaces])
        return next(remaining)

    return rebuilt(space)

"""The leaves that a value of a Gymnasium space consists of."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.errors import ConfigError
from fastmarl.core.spaces.structs import Index, Path

FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Leaf:
    """A single array of a nested value. `sizes` has the number of entries of each container on its path."""

    path: Path
    sizes: tuple[int, ...]
    dtype: np.dtype
    shape: tuple[int, ...]


class RowLayout:
    """The leaves of a space, in the order of the space's dicts and tuples, in native byte order.

    Leaves that are not arrays (Text, Graph, Sequence, ...) have dtype object and shape ().

    Args:
        space: Any gymnasium space.
        keep_dtype: If False, float64 becomes float32, which torch computes in.
    """

    def __init__(self, space: gym.Space, *, keep_dtype: bool = True):
        self.space = space
        self.leaves = tuple(_leaves(space, (), ()))
        if not keep_dtype:
            self.leaves = tuple(
                replace(leaf, dtype=FLOAT32 if leaf.dtype == np.float64 else leaf.dtype) for leaf in self.leaves
            )
        if not self.leaves:
            raise ConfigError(f"the space {space} has no leaves; a value of it can't be recorded")

    def nest(self, arrays: list) -> Any:
        """Nest the leaves' arrays like the space: one array, or dicts and tuples of arrays."""
        return _nest(self.space, iter(arrays))

    def leaves_of(self, value: Any) -> list:
        """Reverse `nest()`. Raises KeyError, IndexError or TypeError if a leaf is missing."""
        return [reduce(getitem, leaf.path, value) for leaf in self.leaves]


def _leaves(space: gym.Space, path: Path, sizes: tuple[int, ...]):
    if isinstance(space, gym.spaces.Dict):
        for key, child in space.spaces.items():
            yield from _leaves(child, (*path, key), (*sizes, len(space.spaces)))
    elif isinstance(space, gym.spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _leaves(child, (*path, Index(index)), (*sizes, len(space.spaces)))
    elif isinstance(space, (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        assert space.shape is not None and space.dtype is not None
        yield Leaf(path, sizes, np.dtype(space.dtype).newbyteorder("="), tuple(space.shape))
    elif isinstance(space, gym.Space):
        yield Leaf(path, sizes, np.dtype(object), ())
    else:
        raise ConfigError(f"expected a gymnasium space, got {space!r}")


def _nest(space: gym.Space, arrays) -> Any:
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


def are_alike(space: gym.Space, other: gym.Space, *, bounds: bool) -> bool:
    """Return True if the spaces are equal, except for dtypes and, unless `bounds` is True, bounds of their Boxes."""
    if space == other:
        return True
    paths, other_paths = ([(leaf.path, leaf.shape) for leaf in _leaves(each, (), ())] for each in (space, other))
    return paths == other_paths and all(
        mine == theirs
        or (
            isinstance(mine, gym.spaces.Box)
            and isinstance(theirs, gym.spaces.Box)
            and (not bounds or (np.allclose(mine.low, theirs.low) and np.allclose(mine.high, theirs.high)))
        )
        for mine, theirs in zip(leaf_spaces(space), leaf_spaces(other), strict=True)
    )


def with_leaf_spaces(space: gym.Space, leaves: Iterable[gym.Space]) -> gym.Space:
    """Replace the leaves of a space by others, given in the order of `leaf_spaces()`."""
    remaining = iter(leaves)

    def rebuilt(child: gym.Space) -> gym.Space:
        if isinstance(child, gym.spaces.Dict):
            return gym.spaces.Dict(OrderedDict((key, rebuilt(each)) for key, each in child.spaces.items()))
        if isinstance(child, gym.spaces.Tuple):
            return gym.spaces.Tuple([rebuilt(each) for each in child.spaces])
        return next(remaining)

    return rebuilt(space)

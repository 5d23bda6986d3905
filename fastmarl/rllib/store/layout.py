"""The layout of observations in rows, determined from the env's arrays instead of its spaces."""

from functools import reduce
from operator import getitem
from typing import Any

import numpy as np

from fastmarl.core.native._env_values import kept
from fastmarl.core.spaces.layout import Leaf
from fastmarl.core.spaces.structs import map_struct
from fastmarl.rllib.episodes.lists import items_of


class ObservationLayout:
    """The dtypes, shapes and nesting of the leaves of an observation.

    Unlike `fastmarl.core.spaces.layout.RowLayout`, it has the dtypes and key order of the first observation from the
    env.

    Attributes:
        has_objects: True if observations are not nests of arrays, so a single leaf stores them as objects.
        is_array: True if observations are single arrays.
    """

    def __init__(self, leaves: tuple[Leaf, ...], types: Any):
        self.leaves = leaves
        self.has_objects = leaves[0].dtype == object
        self.is_array = not self.has_objects and not leaves[0].path
        self._types = types

    @classmethod
    def of(cls, observation: Any) -> "ObservationLayout":
        leaves: list[Leaf] = []
        if not _collect(observation, (), (), leaves) or not leaves:
            return WHOLE
        return cls(tuple(leaves), map_struct(type, observation))

    @classmethod
    def common(cls, observations: list[Any]) -> "ObservationLayout":
        """Return the common layout of several observations, or WHOLE if they differ."""
        first = cls.of(observations[0])
        return first if all(map(first.fits, observations)) else WHOLE

    def fits(self, observation: Any) -> bool:
        """Return True if an observation has this layout."""
        if self.is_array and type(observation) is np.ndarray:
            return (observation.dtype, observation.shape) == (self.leaves[0].dtype, self.leaves[0].shape)
        return self.same(ObservationLayout.of(observation))

    def same(self, other: "ObservationLayout") -> bool:
        """Return True if the other layout is equal to this one."""
        return self is other or (self.leaves == other.leaves and self._types == other._types)

    def columns(self, observations: list[Any]) -> list[np.ndarray]:
        """Stack the leaves of observations of this layout, [n, ...] each; observations stored as objects are copied."""
        if self.has_objects:
            return [_objects([kept(observation) for observation in observations])]
        columns = zip(*map(self.leaves_of, observations), strict=True)
        return [np.stack(column, dtype=leaf.dtype) for leaf, column in zip(self.leaves, columns, strict=True)]

    def leaves_of(self, observation: Any) -> list[Any]:
        """Return the leaves of an observation, the inverse of `nest()`."""
        return [reduce(getitem, leaf.path, observation) for leaf in self.leaves]

    def nest(self, arrays: list) -> Any:
        """Nest arrays, one for each leaf, as in the observation."""
        remaining = iter(arrays)
        return map_struct(lambda leaf: next(remaining), self._types)

    def items(self, observations: Any) -> list[Any]:
        """Convert a nest of arrays to a list of observations, with numbers of the same types as in the first one."""
        return list(observations) if self.has_objects else items_of(observations, self._types)


def _objects(values: list[Any]) -> np.ndarray:
    """Return a 1-D object array, even if the values are arrays."""
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def _collect(value: Any, path: tuple, sizes: tuple, leaves: list[Leaf]) -> bool:
    """Add the leaves of `value` to `leaves`, or return False if a part of it has no dtype."""
    if type(value) is dict:
        return all(_collect(part, (*path, key), (*sizes, len(value)), leaves) for key, part in value.items())
    if type(value) is tuple:
        return all(_collect(part, (*path, i), (*sizes, len(value)), leaves) for i, part in enumerate(value))
    if type(value) is np.ndarray and value.dtype != object and value.dtype.isnative:
        leaves.append(Leaf(path, sizes, value.dtype, value.shape))
    elif type(value) in (int, np.int64):
        leaves.append(Leaf(path, sizes, np.dtype(np.int64), ()))
    else:
        return False
    return True


WHOLE = ObservationLayout((Leaf((), (), np.dtype(object), ()),), None)

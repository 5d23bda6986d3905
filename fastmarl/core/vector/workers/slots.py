"""Places in shared memory for what one env returns and what it is given, by agent, in the order of the env's dicts.

The process of the env and that of the runner have the same objects over the same memory. The order of a dict is part
of what is written: rows are recorded in it. What does not fit is not written; it takes the slow way, pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.native._slots import ActionSlots, MisfitError, ResultReader, ResultWriter
from fastmarl.core.spaces.layout import Leaf, RowLayout
from fastmarl.core.spaces.values import can_hold

Cut = Callable[[tuple[int, ...], Any], np.ndarray]  # (shape, dtype) -> the next piece of the memory
ALL = "__all__"


class ObservationSlot:
    """One agent's observation.

    Attributes:
        value: the arrays in the nesting of the space, as views of the memory; None if a part is no array.
        array: the same, if it is one array.
    """

    def __init__(self, space: gym.Space, cut: Cut):
        layout = RowLayout(space)
        self._has_objects = any(leaf.dtype == object for leaf in layout.leaves)
        arrays = [] if self._has_objects else [cut(leaf.shape, leaf.dtype) for leaf in layout.leaves]
        self.value = None if self._has_objects else layout.nest(arrays)
        self.array: np.ndarray | None = arrays[0] if arrays and not layout.leaves[0].path else None
        self._parts = list(zip(layout.leaves, arrays, strict=False))

    def write(self, value: Any) -> None:
        """Raises MisfitError."""
        if self._has_objects:
            raise MisfitError
        for leaf, array in self._parts:
            _put(array, _part(value, leaf))


class ResultSlots:
    """What one env's reset() or step() returned, infos aside.

    Args:
        observation_spaces: by agent id, of all that can appear.
        state_space: of the env's global states, if they are recorded and one array.
        cut: makes the arrays.

    Attributes:
        read: (infos) -> what was written, and these infos; observations are views of the memory.
        state: the env's global state, as a view of the memory; None if there is no place for it.
    """

    def __init__(self, observation_spaces: Mapping[Hashable, gym.Space], state_space: gym.Space | None, cut: Cut):
        keys = [*observation_spaces, ALL]
        n = len(keys)
        # In one piece, so that a look at its bytes tells whether anything is new: places, and flags as bytes behind.
        header = cut((4 * (1 + n) + (n + 1) // 2,), np.int32)
        header[:] = 0
        places = header[: 4 * (1 + n)].reshape(4, 1 + n)
        flags = header[4 * (1 + n) :].view(np.uint8)[: 2 * n].reshape(2, n)
        rewards = cut((n,), np.float64)
        slots = [ObservationSlot(space, cut) for space in observation_spaces.values()]
        self.state = None if state_space is None else cut(state_space.shape or (), state_space.dtype)
        self._writer = ResultWriter(
            keys, places, flags, rewards, [slot.array for slot in slots], [slot.write for slot in slots]
        )
        values = [slot.value for slot in slots]
        self.read = ResultReader(keys, header.view(np.uint8), places, flags, rewards, values).read

    def write(self, result: Any) -> bool:
        """Write (observations, rewards, terminateds, truncateds, ...); False if something has no place here."""
        try:
            self._writer.write(*result[:4])
        except (MisfitError, OverflowError):
            return False
        return True

    def write_reset(self, result: Any) -> bool:
        """The same of (observations, ...)."""
        return self.write((result[0], {}, {}, {}))

    def read_reset(self, infos: dict) -> tuple[dict, dict]:
        return self.read(infos)[0], infos

    def write_state(self, state: Any) -> bool:
        """Whether the env's global state has a place here."""
        if self.state is None:
            return False
        try:
            _put(self.state, state)
        except MisfitError:
            return False
        return True


def action_slots(action_spaces: Mapping[Hashable, gym.Space], cut: Cut) -> ActionSlots:
    """Those of one env.

    Args:
        action_spaces: by agent id, of all that can appear.
        cut: makes the arrays.
    """
    n = len(action_spaces)
    order = cut((1 + n,), np.int32)
    order[:] = 0
    arrays = [_action_array(space, cut) for space in action_spaces.values()]
    return ActionSlots(list(action_spaces), order, cut((n,), np.int64), arrays)


def _action_array(space: gym.Space, cut: Cut) -> np.ndarray | None:
    """Where an action that is an array goes to; None for one that is a number, or has no place."""
    if isinstance(space, (gym.spaces.Box, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)) and space.shape:
        return cut(space.shape, np.dtype(space.dtype).newbyteorder("="))
    return None


def _put(array: np.ndarray, value: Any) -> None:
    """Copy a value, by the rules by which the record takes it: no other shape, and see `can_hold()`."""
    if type(value) is not np.ndarray or value.dtype != array.dtype or value.shape != array.shape:
        try:
            value = np.asarray(value)
        except Exception as error:  # its own code may raise anything; whoever records it says so
            raise MisfitError from error
        if value.shape != array.shape or not can_hold(array.dtype, value):
            raise MisfitError
    array[...] = value


def _part(value: Any, leaf: Leaf) -> Any:
    """The leaf's part of a whole observation."""
    for key, size in zip(leaf.path, leaf.sizes, strict=True):
        try:
            if len(value) != size:
                raise MisfitError
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise MisfitError from None
    return value

"""Slots in shared memory for the results and actions of an env, keyed by agent.

The env process and the runner process hold equal objects over the same memory. The order of each dict is also written,
because it determines the order of the recorded rows. Values that do not match are pickled instead, which is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.native._slots import ActionSlots, MisfitError, ResultReader, ResultWriter
from fastmarl.core.spaces.layout import Leaf, RowLayout
from fastmarl.core.spaces.values import can_hold

Cut = Callable[[tuple[int, ...], Any], np.ndarray]  # (shape, dtype) -> array in the next part of the memory
ALL = "__all__"


class ObservationSlot:
    """Slot for the observation of an agent.

    Attributes:
        value: Arrays nested like the space, as views of the memory; None if a part is not an array.
        array: The array if the observation is a single array, else None.
    """

    def __init__(self, space: gym.Space, cut: Cut):
        layout = RowLayout(space)
        self._has_objects = any(leaf.dtype == object for leaf in layout.leaves)
        arrays = [] if self._has_objects else [cut(leaf.shape, leaf.dtype) for leaf in layout.leaves]
        self.value = None if self._has_objects else layout.nest(arrays)
        self.array: np.ndarray | None = arrays[0] if arrays and not layout.leaves[0].path else None
        self._parts = list(zip(layout.leaves, arrays, strict=False))

    def write(self, value: Any) -> None:
        """Copy an observation to the slot; raise MisfitError if it does not match."""
        if self._has_objects:
            raise MisfitError
        for leaf, array in self._parts:
            _put(array, _part(value, leaf))


class ResultSlots:
    """Slots for the results of an env's reset() and step(), except infos.

    Args:
        observation_spaces: Dict of agent id -> observation space, for all possible agents.
        state_space: Space of the global states if they are recorded and single arrays, else None.
        cut: Function that allocates the arrays.

    Attributes:
        read: Function that returns the written result with the given infos; observations are views of the memory.
        state: The global state of the env, as a view of the memory; None if it has no slot.
    """

    def __init__(self, observation_spaces: Mapping[Hashable, gym.Space], state_space: gym.Space | None, cut: Cut):
        keys = [*observation_spaces, ALL]
        n = len(keys)
        # One array, so that comparing its bytes detects any change: places, then flags as bytes.
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
        """Write (observations, rewards, terminateds, truncateds, ...); return False if a value does not match."""
        try:
            self._writer.write(*result[:4])
        except (MisfitError, OverflowError):
            return False
        return True

    def write_reset(self, result: Any) -> bool:
        """Write (observations, ...); return False if a value does not match."""
        return self.write((result[0], {}, {}, {}))

    def read_reset(self, infos: dict) -> tuple[dict, dict]:
        return self.read(infos)[0], infos

    def write_state(self, state: Any) -> bool:
        """Write the global state of the env; return False if it does not match."""
        if self.state is None:
            return False
        try:
            _put(self.state, state)
        except MisfitError:
            return False
        return True


def action_slots(action_spaces: Mapping[Hashable, gym.Space], cut: Cut) -> ActionSlots:
    """Create the slots for the actions of an env.

    Args:
        action_spaces: Dict of agent id -> action space, for all possible agents.
        cut: Function that allocates the arrays.
    """
    n = len(action_spaces)
    order = cut((1 + n,), np.int32)
    order[:] = 0
    arrays = [_action_array(space, cut) for space in action_spaces.values()]
    return ActionSlots(list(action_spaces), order, cut((n,), np.int64), arrays)


def _action_array(space: gym.Space, cut: Cut) -> np.ndarray | None:
    """Allocate the slot for an array action; return None for an action that is a number or cannot have a slot."""
    if isinstance(space, (gym.spaces.Box, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)) and space.shape:
        return cut(space.shape, np.dtype(space.dtype).newbyteorder("="))
    return None


def _put(array: np.ndarray, value: Any) -> None:
    """Copy a value; raise MisfitError unless the store would accept its shape and dtype, see `can_hold()`."""
    if type(value) is not np.ndarray or value.dtype != array.dtype or value.shape != array.shape:
        try:
            value = np.asarray(value)
        except Exception as error:  # user code may raise anything; the error is reported when the value is recorded
            raise MisfitError from error
        if value.shape != array.shape or not can_hold(array.dtype, value):
            raise MisfitError
    array[...] = value


def _part(value: Any, leaf: Leaf) -> Any:
    """Return the part of a complete observation that belongs to a leaf."""
    for key, size in zip(leaf.path, leaf.sizes, strict=True):
        try:
            if len(value) != size:
                raise MisfitError
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise MisfitError from None
    return value

"""Checks of observations and actions against their spaces, and comparison of nested values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from fastmarl.core.errors import shown
from fastmarl.core.spaces.layout import ARRAY_SPACES, has_own_contains
from fastmarl.core.spaces.masks import choices_of, mask_row, parts_of, size_problem
from fastmarl.core.spaces.values import can_hold, converted, described


class Misfit(NamedTuple):
    """A value, or a part of it, that does not match its space; if `kind` is "dtype", NumPy can convert it."""

    kind: str  # "observation", "bounds" or "dtype"
    path: tuple
    text: str


def misfits(space: gym.Space, value: Any, path: tuple = (), is_taken: bool | None = None) -> Iterator[Misfit]:
    """Yield parts that a runner rejects ("observation") or converts ("dtype"), or that are out of bounds ("bounds").

    Args:
        is_taken: Result of the custom `contains()` of an enclosing space; None if no enclosing space has one.
    """
    is_own = has_own_contains(space)
    if is_own:
        is_taken = is_taken or bool(space.contains(value))
    if isinstance(space, ARRAY_SPACES):
        yield from _array_misfits(space, value, path, is_taken)
    elif isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        if problem := _problem_of_entries(space, value, may_have_others=is_own):
            yield Misfit("observation", path, problem)
            return
        if is_own and not is_taken:
            yield Misfit("bounds", path, f"is not in {space!r:.200}, according to its contains()")
        for key, part in space.spaces.items() if isinstance(space, gym.spaces.Dict) else enumerate(space.spaces):
            yield from misfits(part, value[key], (*path, key), is_taken)
    elif not (is_taken or space.contains(value)):
        yield Misfit("observation", path, f"expected a value of {space!r:.200}, got {_short(value)}")


def _problem_of_entries(space: gym.spaces.Dict | gym.spaces.Tuple, value: Any, *, may_have_others: bool) -> str:
    """Return "" if a value has the entries that a container space requires, else a description of the problem."""
    n = len(space.spaces)
    if isinstance(space, gym.spaces.Dict):
        if isinstance(value, Mapping) and set(value) >= set(space.spaces) and (len(value) == n or may_have_others):
            return ""
        got = f"the keys {list(value)!r:.200}" if isinstance(value, Mapping) else _short(value)
        return f"expected a dict with the keys {list(space.spaces)!r:.200}, got {got}"
    is_tuple = isinstance(value, tuple | list)
    if is_tuple and (len(value) == n or (len(value) > n and may_have_others)):
        return ""
    return f"expected a tuple of {n} entries, got {f'{len(value)} entries' if is_tuple else _short(value)}"


def _array_misfits(space: gym.Space, value: Any, path: tuple, is_taken: bool | None) -> Iterator[Misfit]:
    assert space.dtype is not None and space.shape is not None
    try:
        array = np.asarray(value)
    except Exception as error:  # user code may raise anything
        yield Misfit("observation", path, f"expected an array, got {_short(value)}: {error}")
        return
    given = array if is_taken is None else converted(array, space.dtype, space.shape)
    if given.shape != space.shape or not can_hold(space.dtype, given):
        expected = f"{space.dtype} of shape {space.shape}"
        yield Misfit("observation", path, f"expected {expected}, got {described(array)}; correct the observation or "
                                          f"its space")  # fmt: skip
        return
    if is_taken:
        return
    if array.dtype != space.dtype and isinstance(value, np.ndarray):
        yield Misfit("dtype", path, f"is {array.dtype}; it is converted to the {space.dtype} of its space")
    with np.errstate(over="ignore"):
        in_dtype = given.astype(space.dtype)
    if in_dtype.dtype.kind == "f" and np.isnan(in_dtype).any():
        yield Misfit("bounds", path, "holds NaN")
    elif in_dtype.size and not space.contains(in_dtype if in_dtype.shape else in_dtype[()]):
        yield Misfit("bounds", path, f"has values from {in_dtype.min()} to {in_dtype.max()}, which are not all in "
                                     f"{space!r:.200}")  # fmt: skip


def reward_problem(reward: Any) -> str | None:
    """Describe why a runner would reject this reward, or return None."""
    try:
        array = np.asarray(reward)
    except Exception:  # user code may raise anything
        return f"expected a number, got {_short(reward)}"
    if array.size != 1 or array.dtype.kind not in "fiub":
        return f"expected a number, got {_short(reward)}"
    return None if math.isfinite(array.item()) else f"expected a finite reward, got {array.item()}"


def random_action(space: gym.Space, mask: Any = None) -> Any:
    """Sample an action of the types used by runners, with the random generator of the space.

    Args:
        mask: Mask for a Discrete or MultiDiscrete space, in any form that `spaces.masks` supports; nonzero entries are
            legal. Ignored if its size is wrong or it allows no choice.
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: random_action(part) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(random_action(part) for part in space.spaces)
    action = space.sample() if mask is None else _legal_action(space, mask)
    return int(action) if isinstance(space, gym.spaces.Discrete) else action


def _legal_action(space: gym.Space, mask: Any) -> Any:
    sizes, row = choices_of(space), mask_row(mask)
    parts = [] if size_problem(row.size, sizes) else [part != 0 for part in parts_of(row, sizes)]
    if not parts or not all(map(np.any, parts)):
        return space.sample()
    if isinstance(space, gym.spaces.Discrete):
        return space.sample(mask=parts[0].astype(np.int8))
    assert isinstance(space, gym.spaces.MultiDiscrete)
    choices = [space.np_random.choice(np.flatnonzero(part)) for part in parts]
    return (np.reshape(choices, space.shape) + space.start).astype(space.dtype)


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """Yield all arrays nested in dicts, tuples and lists."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from arrays_in(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from arrays_in(part)


def same(one: Any, other: Any) -> bool:
    """Return True if keys, lengths, strings, numbers (arrays: bitwise) and the types of other objects are equal."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return all(map(same, one.flat, other.flat)) if one.dtype == object else one.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, int | float | str | bytes | np.generic):
        return bool(one == other or (one != one and other != other))
    return True


def _short(value: Any) -> str:
    return f"{type(value).__name__} {shown(value)}"

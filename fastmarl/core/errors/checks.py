"""Checks of arguments and options; errors name the argument, the allowed values and the actual value."""

import math
import re
from collections.abc import Callable, Hashable, Iterable
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from fastmarl.core.errors import ConfigError, FastmarlError, shown

K = TypeVar("K")
V = TypeVar("V")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")  # in the repr of objects without a custom one


def check_bool(name: str, value: Any) -> bool:
    """Convert a Python or NumPy bool to a Python bool; raise ConfigError for other values.

    `bool()` would turn the string "False" into True.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def is_integer(value: Any) -> bool:
    """Return True for a Python or NumPy integer, but not for a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def plain_seed(seed: Any) -> int | None:
    """Convert a seed (None, or a Python or NumPy integer) to a Python object; raise ConfigError for other values."""
    if seed is not None and not is_integer(seed):
        raise ConfigError(f"a seed must be an integer or None, got {shown(seed)}")
    return None if seed is None else int(seed)


def check_integer(name: str, value: Any, *, least: int) -> None:
    """Raise ConfigError if the value is not an integer >= `least`."""
    if not is_integer_from(least, value):
        raise ConfigError(f"{name} must be an integer >= {least}, got {value!r}")


def check_seconds(name: str, value: Any) -> None:
    """Raise ConfigError if the value is not a positive number; infinity is allowed."""
    if not is_real(value) or not value > 0:
        raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}")


def check_timeout(name: str, value: Any) -> None:
    """Raise ConfigError if the value is not a valid timeout: a finite number of seconds >= 0.001."""
    if not is_number(value) or value < 1e-3:
        raise ConfigError(f"{name} must be a number of seconds >= 0.001, got {value!r}")


def is_integer_from(least: int, value: Any) -> bool:
    return is_integer(value) and value >= least


def is_number(value: Any) -> bool:
    return is_real(value) and math.isfinite(value)


def is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_clip(value: Any) -> bool:
    """Return True for valid values of `clip_rewards` other than None."""
    if isinstance(value, tuple):
        return len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]
    return isinstance(value, bool) or (is_number(value) and value > 0)


def for_each(keys: Iterable[K], make: Callable[[K], V]) -> dict[K, V]:
    """Return a dict of key -> `make(key)`.

    Raises:
        ConfigError: If `make` raises it for some keys; the message combines all of them.
    """
    made, errors = {}, list[ConfigError]()
    for key in keys:
        try:
            made[key] = make(key)
        except ConfigError as error:
            errors.append(error)
    if len(errors) > 1:
        raise ConfigError("; ".join(map(str, errors))) from errors[0]
    if errors:
        raise errors[0]
    return made


def in_order(what: str, ids: Iterable[Hashable], error: type[FastmarlError] = ConfigError) -> list[Any]:
    """Return ids as a list; sets, whose order varies between processes, are sorted.

    Raises:
        FastmarlError: `error`, if the ids in a set can only be sorted by their addresses.
    """
    if not isinstance(ids, set | frozenset):
        return list(ids)
    if all(isinstance(each, int) for each in ids):
        return sorted(ids)  # type: ignore[type-var]
    keys = {_sort_key(each): each for each in ids}
    if len(keys) < len(ids) or any(_ADDRESS.search(key) for key in keys):
        raise error(f"the order of {what} matters, but the order of this set varies between processes; pass a list, "
                    f"got {shown(ids)}")  # fmt: skip
    return [keys[key] for key in sorted(keys)]


def _sort_key(id_: Any) -> str:
    inside = sorted(map(_sort_key, id_)) if isinstance(id_, set | frozenset) else id_
    return f"{type(id_).__qualname__} {inside!r}"

"""Conversion of Gymnasium spaces to and from plain data that `fastmarl.checkpoint` can save."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.errors import ConfigError
from fastmarl.core.spaces.layout import has_own_contains

KIND = "kind"
OTHER = "other"
ANY_FORM = "any form"


def plain_space(space: gym.Space) -> dict[str, Any]:
    """Convert a space to nested dicts and lists of strings, numbers and arrays.

    Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these are supported. A subclass is saved as the
    Gymnasium class that it derives from; if it overrides `contains()`, the restored space accepts any value. For other
    spaces, only a description is saved.
    """
    plain = _plain_space(space)
    return {**plain, ANY_FORM: True} if plain[KIND] != OTHER and has_own_contains(space) else plain


def _plain_space(space: gym.Space) -> dict[str, Any]:
    if isinstance(space, gym.spaces.Dict):
        return {KIND: "Dict", "spaces": [[key, plain_space(each)] for key, each in space.spaces.items()]}
    if isinstance(space, gym.spaces.Tuple):
        return {KIND: "Tuple", "spaces": [plain_space(each) for each in space.spaces]}
    if isinstance(space, gym.spaces.Box) and space.dtype != np.longdouble:
        bounds = {name: _plain_array(getattr(space, name)) for name in _BOX_ARRAYS}
        return {KIND: "Box", "dtype": np.dtype(space.dtype).str, "shape": list(space.shape), **bounds}
    if isinstance(space, gym.spaces.Discrete):
        return {KIND: "Discrete", "dtype": np.dtype(space.dtype).str, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {KIND: "MultiDiscrete", "dtype": np.dtype(space.dtype).str, "nvec": space.nvec, "start": space.start}
    if isinstance(space, gym.spaces.MultiBinary):
        return {KIND: "MultiBinary", "n": space.n}
    return {KIND: OTHER, "text": f"{space!r:.200}"}


def space_from_plain(data: Any) -> gym.Space:
    """Restore a space from data returned by `plain_space()`.

    Raises:
        ConfigError: If the space has an unsupported type, or `data` is invalid.
    """
    kind = data.get(KIND) if isinstance(data, Mapping) else None
    if type(kind) is str and kind == OTHER:
        raise ConfigError(f"cannot restore the space {data.get('text')}, whose type is not supported in saved data")
    try:
        space = _MAKERS[kind](data)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError) as error:
        raise ConfigError(f"expected data of a saved space, got {data!r:.200}: {error!r}") from error
    if data.get(ANY_FORM):
        space.contains = _contains_any
    return space


def _contains_any(value: Any) -> bool:
    """Accept any value; replaces a custom `contains()`, which is not saved."""
    return True


def _plain_array(array: np.ndarray) -> Any:
    """Return a single number if all values of the array are equal, otherwise the array."""
    is_one = array.size > 0 and bool((array == array.flat[0]).all())
    return array.flat[0].item() if is_one else array


def _box(data: Mapping[str, Any]) -> gym.Space:
    dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
    arrays = {
        name: _filled(data[name], shape, np.dtype(np.bool_) if name in _BOUNDED else dtype) for name in _BOX_ARRAYS
    }
    space = gym.spaces.Box(arrays["low"], arrays["high"], shape, dtype.type)
    space.dtype = dtype  # keeps the byte order
    # The bounds of integer Boxes do not show whether they are bounded, so the flags are also restored.
    for name, array in arrays.items():
        setattr(space, name, array)
    return space


def _filled(values: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Undo the conversion by `_plain_array()`."""
    given = np.asarray(values)
    if given.dtype.kind not in "biuf" or given.shape not in ((), shape):
        raise ValueError(f"expected numbers of shape {shape}, got {given.dtype} of shape {given.shape}")
    return np.array(np.broadcast_to(given, shape), dtype)


def _discrete(data: Mapping[str, Any]) -> gym.Space:
    dtype = np.dtype(data["dtype"])
    options = {} if dtype == np.int64 else {"dtype": dtype.type}  # Gymnasium 1.1 does not have this option
    return gym.spaces.Discrete(data["n"], start=data["start"], **options)


def _multi_discrete(data: Mapping[str, Any]) -> gym.Space:
    nvec, start = np.asarray(data["nvec"]), np.asarray(data["start"])
    if nvec.dtype.kind not in "iu" or start.dtype.kind not in "iu":
        raise ValueError(f"expected integers, got {nvec.dtype} and {start.dtype}")
    return gym.spaces.MultiDiscrete(nvec, np.dtype(data["dtype"]).type, start=start)


_BOUNDED = ("bounded_below", "bounded_above")
_BOX_ARRAYS = ("low", "high", *_BOUNDED)
_MAKERS: dict[Any, Any] = {
    "Dict": lambda data: gym.spaces.Dict(OrderedDict((key, space_from_plain(each)) for key, each in data["spaces"])),
    "Tuple": lambda data: gym.spaces.Tuple([space_from_plain(each) for each in data["spaces"]]),
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda data: gym.spaces.MultiBinary(data["n"]),
}

"""Validation of external states, which are checked completely before any part is used."""

import hashlib
import operator
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from fastmarl.core.errors import ConfigError

MOST = 2**63 - 1
TORCH_STATE_BYTES = {"cpu": 5056, "cuda": 16}


def check_keys(what: str, state: Any, expected: Collection[str]) -> None:
    """Raise ConfigError if `state` is not a mapping with exactly these keys."""
    check_mapping(what, state)
    if set(state) != set(expected):
        missing, unknown = [key for key in expected if key not in state], [key for key in state if key not in expected]
        raise ConfigError(f"{what} must have the expected keys; missing: {missing}, unknown: {unknown}")


def check_mapping(what: str, state: Any) -> None:
    """Raise ConfigError if `state` is not a mapping."""
    if not isinstance(state, Mapping):
        raise ConfigError(f"{what} must be a dict, got {type(state).__name__}")


PLAIN = (type(None), bool, int, float, str, dict, list, tuple)


def is_plain(value: Any, *more: type) -> bool:
    """Return True if the type of a value, and of everything in it, is exactly one of `PLAIN` or `more`.

    Instances of subclasses do not count, because loading a file would restore them as the base type.
    """
    kind = type(value)
    if kind not in (*PLAIN, *more):
        return False
    if kind is dict:
        return all(is_plain(each, *more) for each in (*value, *value.values()))
    return kind not in (list, tuple, set) or all(is_plain(each, *more) for each in value)


def whole_number(what: str, value: Any) -> int:
    """Return the value as an int from 0 to 2**63 - 1.

    Raises:
        ConfigError: If it is not such an integer.
    """
    try:
        number = -1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= MOST:
        raise ConfigError(f"{what} must be an integer from 0 to 2**63 - 1, got {value!r}")
    return number


def float_array(what: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return a float64 copy of an array of real numbers with this shape.

    Raises:
        ConfigError: If the values are not real numbers, or have a different shape.
    """
    try:
        given = np.asarray(values)
    except ValueError as error:
        raise ConfigError(f"{what} must be a numeric array: {error}") from error
    if given.dtype.kind not in "iuf" or given.shape != shape:
        raise ConfigError(
            f"{what} must be a numeric array of shape {shape}, got dtype {given.dtype} and shape {given.shape}"
        )
    return given.astype(np.float64)


def column_of(what: str, values: Any, n: int, dtype: Any, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return `values` if it is an array [n, *shape] of this dtype.

    Raises:
        ConfigError: If it is not.
    """
    wanted = np.dtype(dtype)
    if not isinstance(values, np.ndarray) or (values.dtype, values.shape) != (wanted, (n, *shape)):
        got = f"{values.dtype} {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise ConfigError(f"{what} must be an array of dtype {wanted} and shape {(n, *shape)}, got {got}")
    return values


def state_of_torch(generator: torch.Generator) -> dict[str, Any]:
    """Return the state and device of a random generator, as a plain array and a string."""
    return {"device": generator.device.type, "state": generator.get_state().numpy()}


def torch_state_for(device: torch.device, state: Any) -> torch.Tensor:
    """Convert a result of `state_of_torch()` to a state for `set_state()` of a generator on `device`.

    A generator on the same kind of device continues with the same numbers. On a different kind of device, it starts a
    stream derived from the state, so that all generators restored from the same state still produce the same numbers.

    Raises:
        ConfigError: If the state is invalid.
    """
    check_keys("the state of torch's generator", state, ("device", "state"))
    saved_on, given = state["device"], np.asarray(state["state"])
    n_bytes = TORCH_STATE_BYTES.get(saved_on) if isinstance(saved_on, str) else None
    if n_bytes is None or given.dtype != np.uint8 or given.shape != (n_bytes,):
        raise ConfigError(
            f"the state of torch's generator must be a uint8 array of length {TORCH_STATE_BYTES}[device], got device "
            f"{saved_on!r}, dtype {given.dtype} and shape {given.shape}"
        )
    fresh = torch.Generator(device)
    if saved_on != device.type:
        digest = hashlib.sha256(saved_on.encode() + given.tobytes()).digest()
        return fresh.manual_seed(int.from_bytes(digest[:8]) >> 1).get_state()
    try:
        fresh.set_state(torch.from_numpy(given.copy()))
    except RuntimeError as error:
        raise ConfigError(f"the state of torch's generator on {saved_on} is invalid: {error}") from error
    return fresh.get_state()


def check_numpy_state(rng: np.random.Generator, state: Any) -> None:
    """Raise ConfigError if `rng.bit_generator` cannot accept `state`."""
    kind = type(rng.bit_generator)
    fresh: Any = kind(0)
    try:
        fresh.state = state
        fits = bool(fresh.state == state)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"the state of NumPy's generator is not valid for {kind.__name__}: {error!r}") from error
    if not fits:
        raise ConfigError(f"the state of NumPy's generator is not valid for {kind.__name__}: {state!r}")

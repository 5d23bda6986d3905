"""Lossless conversion of Python values to JSON and back.

Values without a JSON counterpart are wrapped: {"$": kind, "value": ...}. Instances of subclasses of dict, list, tuple,
str, int and float are restored as their base class. All other values are restored unchanged; NumPy scalars and arrays
are bit-identical.
"""

import base64
import json
import math
import struct
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import GraphInstance

from fastmarl.core.errors import OfflineError, shown
from fastmarl.core.spaces.columns import Recorded
from fastmarl.core.spaces.structs import Index

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
MOST_KEPT = 65_536  # number of encoded ids in the cache
MOST_SHOWN = 64  # arrays with more numbers are written as bytes


class LeafIndex(NamedTuple):
    """A placeholder for column `number` in a nested value."""

    number: int


def to_json(value: Any, what: str) -> str:
    """Encode a value as JSON text.

    Args:
        value: The value to encode.
        what: Name of the value in error messages.

    Raises:
        OfflineError: If it contains a value that JSON cannot represent.
    """
    return _ENCODER.encode(_encode(value, what))


def from_json(text: str) -> Any:
    """Decode a string returned by `to_json()`."""
    return _decode(json.loads(text))


def copied(value: Any) -> Any:
    """Copy the containers and arrays in a value; other objects are shared."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return value.copy() if isinstance(value, set | np.ndarray) else value


def agent_text(agent_id: Hashable) -> str:
    """Return a unique string for an agent id. String ids are unchanged unless they look like JSON."""
    return _text_of_string(plain_text(agent_id)) if isinstance(agent_id, str) else _id_text(agent_id)


@lru_cache(MOST_KEPT)
def _text_of_string(agent_id: str) -> str:
    is_plain = not _is_json(agent_id) and isinstance(_encode_str(agent_id, ""), str)
    return agent_id if is_plain else _id_text(agent_id)


def _id_text(agent_id: Hashable) -> str:
    return to_json(agent_id, f"the agent id {shown(agent_id)}")


def ids_text(agent_ids: tuple[Hashable, ...]) -> str:
    """Encode the ids of several agents as a single string."""
    # Cache strings only: ids of other types, such as 0, False and 0.0, may be equal but encode differently.
    make = _text_of_strings if all(type(each) is str for each in agent_ids) else _ids_text
    return make(agent_ids)


def _ids_text(agent_ids: tuple[Hashable, ...]) -> str:
    return to_json(list(agent_ids), "the agents' ids")


_text_of_strings = lru_cache(MOST_KEPT)(_ids_text)


def agent_from_text(text: str) -> Any:
    """Decode a string returned by `agent_text()`."""
    return from_json(text) if _is_json(text) else text


def plain_text(value: Any) -> str:
    """Return the characters of a string, including a str-Enum member, or `str()` of any other value."""
    return str.__str__(value) if isinstance(value, str) else str(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _encode(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for kinds, encode in _ENCODERS:
        if isinstance(value, kinds):
            return encode(value, where)
    raise OfflineError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which can't be written to files: use None, "
        "numbers, strings, bytes, NumPy arrays, or dicts, lists, tuples and sets of these"
    )


def _wrapped(kind: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"$": kind, "value": value, **more}


def _encode_float(value: float, where: str) -> Any:
    return float(value) if math.isfinite(value) else _wrapped("float", struct.pack(">d", value).hex())


def _encode_str(value: str, where: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates, which UTF-8 cannot encode
        return _wrapped("str", _base64(value.encode("utf-8", "surrogatepass")))
    return plain_text(value)


def _encode_dict(value: dict, where: str) -> Any:
    plain = "$" not in value and all(isinstance(key, str) and key.isprintable() for key in value)
    if plain:
        return {plain_text(key): _encode(item, f"{where}[{key!r}]") for key, item in value.items()}
    key_of = f"a key of {where}"
    pairs = [[_encode(key, key_of), _encode(item, f"{where}[{shown(key)}]")] for key, item in value.items()]
    return _wrapped("dict", pairs)


def _encode_items(items: Any, where: str) -> list:
    return [_encode(item, f"{where}[{i}]") for i, item in enumerate(items)]


def _encode_scalar(value: np.generic, where: str) -> Any:
    return _wrapped("scalar", *_numbers(np.asarray(value), where), dtype=value.dtype.str)


def _encode_array(value: np.ndarray, where: str) -> Any:
    shape = list(value.shape)
    if value.dtype == object:
        return _wrapped("objects", _encode_items(value.ravel().tolist(), where), shape=shape)
    return _wrapped("array", *_numbers(value, where), dtype=value.dtype.str, shape=shape)


def _numbers(array: np.ndarray, where: str) -> tuple[Any]:
    """Encode a short array of finite numbers as a list, and any other array as bytes."""
    if array.dtype.kind not in "biufcUSmM":
        raise OfflineError(f"{where} is an array of dtype {array.dtype}, which can't be written to files")
    is_shown = array.dtype.kind in "biu" or (array.dtype.kind == "f" and array.dtype.itemsize <= 8)
    if is_shown and array.size <= MOST_SHOWN and np.isfinite(array).all():
        return (array.ravel().tolist(),)
    return (_base64(array.tobytes()),)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


_ENCODERS: list[tuple[Any, Callable[[Any, str], Any]]] = [
    (np.generic, _encode_scalar),  # before float, as np.float64 is a subclass of it
    (float, _encode_float),
    (Index, lambda value, where: _wrapped("index", int(value))),
    (int, lambda value, where: int(value)),
    (str, _encode_str),
    (dict, _encode_dict),
    (list, _encode_items),
    (LeafIndex, lambda value, where: _wrapped("leaf", value.number)),
    (GraphInstance, lambda value, where: _wrapped("graph", _encode_items(value, where))),
    (tuple, lambda value, where: _wrapped("tuple", _encode_items(value, where))),
    (np.ndarray, _encode_array),
    (Recorded, lambda value, where: _wrapped("recorded", value.value)),
    (bytes, lambda value, where: _wrapped("bytes", _base64(value))),
    (frozenset, lambda value, where: _wrapped("frozenset", _encode_items(value, where))),
    (set, lambda value, where: _wrapped("set", _encode_items(value, where))),
]


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" in value:
        return _DECODERS[value["$"]](value)
    return {key: _decode(item) for key, item in value.items()}


def _decode_array(value: dict[str, Any]) -> np.ndarray:
    dtype, numbers = np.dtype(value["dtype"]), value["value"]
    if isinstance(numbers, str):
        flat = np.frombuffer(base64.b64decode(numbers), dtype).copy()
    else:
        flat = np.array(numbers, dtype)
    return flat.reshape(value.get("shape", ()))


def _decode_objects(value: dict[str, Any]) -> np.ndarray:
    items = _decode(value["value"])
    return np.fromiter(items, object, len(items)).reshape(value["shape"])


_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "float": lambda value: struct.unpack(">d", bytes.fromhex(value["value"]))[0],
    "str": lambda value: base64.b64decode(value["value"]).decode("utf-8", "surrogatepass"),
    "dict": lambda value: {_decode(key): _decode(item) for key, item in value["value"]},
    "scalar": lambda value: _decode_array(value)[()],
    "array": _decode_array,
    "objects": _decode_objects,
    "index": lambda value: Index(value["value"]),
    "leaf": lambda value: LeafIndex(value["value"]),
    "graph": lambda value: GraphInstance(*_decode(value["value"])),
    "tuple": lambda value: tuple(_decode(value["value"])),
    "recorded": lambda value: Recorded(value["value"]),
    "bytes": lambda value: base64.b64decode(value["value"]),
    "frozenset": lambda value: frozenset(_decode(value["value"])),
    "set": lambda value: set(_decode(value["value"])),
}

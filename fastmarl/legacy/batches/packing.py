"""Packing of columns into short strings as in RLlib: pickled, compressed with LZ4, and encoded in Base64.

Unpickling calls no NumPy functions: `numpy.ndarray`, `scalar` and the `__setstate__` of arrays and dtypes interpret raw
bytes as pointers to objects and trust any size, so a malicious file could crash the interpreter. Instead, this module
builds the arrays itself, after checking the number of bytes.
"""

import base64
import importlib
import io
import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fastmarl.core.errors import BatchError, ConfigError
from fastmarl.core.errors.packages import how_to_install

DTYPES = re.compile(r"[?biufc]\d{0,2}|[SU][1-9]\d{0,8}|O8?")
ORDERS = ("<", ">", "=", "|")
KIND = "a packed column may contain only arrays, numbers and strings"


def can_pack() -> bool:
    """Return whether lz4 is installed."""
    try:
        importlib.import_module("lz4.frame")
    except ModuleNotFoundError:
        return False
    return True


def check_can_pack(wanted_by: str) -> None:
    """Raise ConfigError if lz4 is missing."""
    if not can_pack():
        raise ConfigError(f"{wanted_by} needs lz4: {how_to_install('lz4')}")


def pack(data: Any) -> str:
    """Pack an array, or dicts and tuples of arrays, into a string for `unpack()`."""
    import lz4.frame

    return base64.b64encode(lz4.frame.compress(pickle.dumps(data))).decode("ascii")


def unpack(text: str | bytes) -> Any:
    """Return the data passed to `pack()`.

    Raises:
        BatchError: If the text contains something other than arrays, numbers and strings.
    """
    import lz4.frame

    return unpickled(lz4.frame.decompress(base64.b64decode(text)))


def is_packed(data: Any) -> bool:
    """Return whether a column or an entry is packed."""
    return isinstance(data, str | bytes)


def unpickled(data: bytes) -> Any:
    """Return the value in a pickle of plain data.

    Raises:
        BatchError: If the pickle contains something other than plain data. A damaged pickle may raise other exceptions.
    """
    return _resolved(_Unpickler(io.BytesIO(data)).load(), {})


class _StandIn:
    """Stands in for a class or function named in a pickle, which may call it but not set its attributes."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __setstate__(self, state: Any) -> None:
        raise BatchError(f"{KIND}; this one sets attributes of a {type(self).__name__}")


class _Function(_StandIn):
    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


class _Dtype(_StandIn):
    __slots__ = ("dtype",)

    def __init__(self, text: Any, *_: Any):
        if not isinstance(text, str) or not DTYPES.fullmatch(text):
            raise BatchError(f"{KIND}; this one has the dtype {text!r:.100}")
        self.dtype: np.dtype[Any] = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        _, order, *parts = state[:5]
        if order not in ORDERS or any(part is not None for part in parts):
            raise BatchError(f"{KIND}; this one has a structured dtype")
        self.dtype = self.dtype.newbyteorder(order)


class _Array(_StandIn):
    """An array in a pickle, with content of checked length; objects in it may still be stand-ins."""

    __slots__ = ("axes", "content", "dtype", "order", "shape")

    def __init__(self, *_: Any) -> None:
        self.content: Any = None
        self.axes: Any = None  # order of the axes, if the array is transposed

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        self.fill(content, dtype, shape, "F" if is_fortran else "C")

    def fill(self, content: Any, dtype: Any, shape: Any, order: Any) -> None:
        if not isinstance(dtype, _Dtype) or order not in ("C", "F"):
            raise BatchError(f"{KIND}; this one has an array without a valid dtype or order")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise BatchError(f"{KIND}; this one has an array of shape {shape!r:.100}")
        self.content, self.dtype, self.shape, self.order = content, dtype.dtype, shape, order
        if not isinstance(content, list if self.dtype == object else bytes | bytearray):
            raise BatchError(f"{KIND}; this one has an array of dtype {self.dtype} stored as {type(content).__name__}")
        if len(content) != math.prod(shape) * (1 if self.dtype == object else self.dtype.itemsize):
            raise BatchError(f"{KIND}; this one has an array of dtype {self.dtype} and shape {shape!r:.100} with "
                             f"{len(content)} items or bytes")  # fmt: skip

    def made(self, objects: Iterable[Any]) -> np.ndarray:
        """Build the array, with `objects` as its elements if its dtype is object."""
        if self.dtype == object:
            flat = np.fromiter(objects, object, len(self.content))
        else:
            flat = np.frombuffer(self.content, self.dtype).copy()
        return flat.reshape(self.shape, order=self.order).transpose(self.axes or range(len(self.shape)))


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> _Array:
    array = _Array()
    array.fill(content, dtype, shape, "C" if order == "K" else order)
    array.axes = axes
    return array


def _scalar(dtype: Any, content: bytes) -> Any:
    array = _from_buffer(content, dtype, (), "C")
    if array.dtype == object:
        raise BatchError(f"{KIND}; this one has a scalar of dtype {array.dtype}")
    return array.made([])[()]


def _refused(*_: Any) -> Any:
    raise BatchError(f"{KIND}; this one calls numpy.ndarray")


KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Function(_Dtype),
    ("numpy", "ndarray"): _Function(_refused),
    ("numpy.core.multiarray", "_reconstruct"): _Function(_Array),
    ("numpy.core.multiarray", "scalar"): _Function(_scalar),
    ("numpy.core.numeric", "_frombuffer"): _Function(_from_buffer),
    ("collections", "OrderedDict"): OrderedDict,
}
"""All names allowed in a pickle, with their replacements."""


class _Unpickler(pickle._Unpickler):
    """Pure Python unpickler; the C version would allocate as many memo entries as a pickle claims to have."""

    def find_class(self, module: str, name: str) -> Any:
        known = KNOWN.get((module.replace("numpy._core", "numpy.core"), name))
        if known is None:
            raise BatchError(f"{KIND}; this one refers to {module}.{name}")
        return known


def _resolved(value: Any, done: dict[int, Any]) -> Any:
    """Replace stand-ins in `value` with the arrays they stand for.

    Args:
        done: Id of a container -> its replacement, as a container may occur several times or contain itself.
    """
    if id(value) in done:
        return done[id(value)]
    made: Any
    if isinstance(value, _Array) and value.content is not None:
        made = value.made(_resolved(item, done) for item in value.content)
    elif isinstance(value, _StandIn):
        raise BatchError(f"{KIND}; this one has a {type(value).__name__}")
    elif isinstance(value, tuple):
        made = tuple(_resolved(item, done) for item in value)
    elif isinstance(value, list):
        made = done[id(value)] = value
        value[:] = [_resolved(item, done) for item in value]
    elif isinstance(value, dict):
        made = done[id(value)] = value
        for key in value:
            value[key] = _resolved(value[key], done)
    else:
        return value
    done[id(value)] = made
    return made

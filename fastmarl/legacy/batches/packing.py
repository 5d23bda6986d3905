"""Columns as short texts, in RLlib's way: pickled, compressed by LZ4, in base 64."""

import base64
import importlib
import pickle
from typing import Any

from fastmarl.core.errors import ConfigError
from fastmarl.legacy.batches.unpickling import unpickled


def can_pack() -> bool:
    """Whether lz4 is installed."""
    try:
        importlib.import_module("lz4.frame")
    except ModuleNotFoundError:
        return False
    return True


def check_can_pack(wanted_by: str) -> None:
    """Raise ConfigError if lz4 is missing."""
    if not can_pack():
        raise ConfigError(f"{wanted_by} needs lz4, which is not installed: pip install lz4")


def pack(data: Any) -> str:
    """A text from which `unpack()` gets an array, or dicts and tuples of arrays, again."""
    import lz4.frame

    return base64.b64encode(lz4.frame.compress(pickle.dumps(data))).decode("ascii")


def unpack(text: str | bytes) -> Any:
    """What was packed.

    Raises:
        BatchError: there is something else in it than arrays, numbers and texts.
    """
    import lz4.frame

    return unpickled(lz4.frame.decompress(base64.b64decode(text)))


def is_packed(data: Any) -> bool:
    """Whether a column, or an entry of one, is such a text."""
    return isinstance(data, str | bytes)

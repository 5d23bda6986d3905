"""Columns as short texts, in RLlib's way: pickled, compressed by LZ4, in base 64."""

import base64
import importlib
import io
import pickle
from typing import Any

from fastmarl.errors import BatchError, ConfigError

SAFE = {
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "numpy._core.numeric": {"_frombuffer"},
    "collections": {"OrderedDict"},
    "_codecs": {"encode"},
}
"""All that a packed column may name: whoever reads a file runs no code of whoever wrote it."""


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

    return _ArraysOnly(io.BytesIO(lz4.frame.decompress(base64.b64decode(text)))).load()


def is_packed(data: Any) -> bool:
    """Whether a column, or an entry of one, is such a text."""
    return isinstance(data, str | bytes)


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in SAFE.get(module, ()):
            raise BatchError(f"a packed column may hold arrays, numbers and texts; this one asks for {module}.{name}")
        return super().find_class(module, name)

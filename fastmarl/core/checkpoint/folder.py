"""Saves trees of state to a directory: arrays in safetensors, everything else in JSON, without pickle.

The directory contains `state.json` and the `arrays-<digest>.safetensors` that it names. A save writes the arrays first
and then replaces `state.json` in a single rename, so the directory always contains either the old checkpoint or the new
one. Values not supported by plain JSON are wrapped: {"$": kind, "value": ...}, see `_encode`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as dump_arrays

from fastmarl.core.checkpoint.sealed_json import digest, read_file, replace_file
from fastmarl.core.errors import CheckpointError

FORMAT = "fastmarl.checkpoint"
VERSION = 1

STATE_FILE = "state.json"
_ARRAYS_FILE = r"arrays-[0-9a-f]{16}\.safetensors"
_TEMPORARY = rf"\.({re.escape(STATE_FILE)}|{_ARRAYS_FILE})\.[0-9a-f]{{32}}"  # left by a killed process
_KEY_TYPES = (str, int, float, bool, type(None))
_SAFE_INT_BITS = 53  # other JSON readers round larger integers


def save_state(path: str | os.PathLike[str], state: Any) -> None:
    """Write `state` to the directory `path`, which is created if needed; an existing checkpoint is replaced.

    Args:
        path: The directory. Files that are not part of a checkpoint are left unchanged.
        state: Any nesting of dicts, lists, tuples, str, int of any size, float, bool, None, numeric numpy arrays of any
            shape (including 0-d), and torch tensors. When loaded, numpy scalars become Python numbers and tensors
            become arrays; tensors of a dtype that numpy does not support (bfloat16) become float32. Keys of dicts are
            strings, numbers, None, or tuples of them.

    Raises:
        CheckpointError: If a value cannot be saved; the message gives its path in the tree.
        OSError: If writing fails, for example because the disk is full. An earlier checkpoint always remains intact.
    """
    arrays: list[np.ndarray] = []
    tree = _encode(state, "state", arrays)
    blob = dump_arrays({str(i): array for i, array in enumerate(arrays)})
    of_arrays = hashlib.sha256(blob).hexdigest()
    content = {"tree": tree, "arrays": f"arrays-{of_arrays[:16]}.safetensors", "arrays_sha256": of_arrays}
    text = json.dumps({"format": FORMAT, "version": VERSION, "sha256": digest(content), "content": content}, indent=1)

    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / content["arrays"], blob)
    replace_file(folder / STATE_FILE, text.encode())
    for file in folder.iterdir():
        if file.name != content["arrays"] and re.fullmatch(f"{_ARRAYS_FILE}|{_TEMPORARY}", file.name):
            file.unlink()


def is_key(value: Any) -> bool:
    """Return True if a checkpoint can store this key: a string, a number, None, or a tuple of them.

    The loaded key is equal but may have a different type, such as int for np.int64 or str for a member of a StrEnum.
    """
    if isinstance(value, tuple):
        return all(map(is_key, value))
    is_plain_number = isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.dtype != np.longdouble
    return is_plain_number or isinstance(value, _KEY_TYPES)


def stored_key(key: Any) -> Any:
    """Return a representation of a hashable for checkpoints that is the same in every process.

    This is `key` itself if `is_key(key)`, otherwise its `repr()` with sorted sets and without addresses. Different keys
    may have equal representations.
    """
    return key if is_key(key) else _text(key)


def _text(value: Any) -> str:
    if type(value) is frozenset:
        return f"frozenset({{{', '.join(sorted(map(_text, value)))}}})"
    if type(value) is tuple:
        return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"
    return re.sub(" at 0x[0-9a-fA-F]+", "", repr(value))


def load_state(path: str | os.PathLike[str]) -> Any:
    """Read a state written by `save_state` from the directory `path`; arrays are writeable and owned by the caller.

    Raises:
        CheckpointError: If the checkpoint is missing, damaged, truncated, unreadable, or from a newer version. The
            message names the file.
    """
    file = Path(path) / STATE_FILE
    inside: list[Path] = []
    with suppress(ValueError):  # a null character in the path
        inside = sorted(file.parent.glob(f"checkpoint*/{STATE_FILE}"), key=lambda each: each.stat().st_mtime)
    hint = f"did you mean {inside[-1].parent}?" if inside else "pass a folder with a complete checkpoint"
    content = _checked_content(file, _read(file, hint))
    arrays_file = file.parent / content["arrays"]
    blob = _read(arrays_file, "the checkpoint is incomplete: copy the entire folder again")
    if hashlib.sha256(blob).hexdigest() != content["arrays_sha256"]:
        raise _damaged(arrays_file, f"its {len(blob)} bytes do not match the checksum in {STATE_FILE}")
    try:
        return _decode(content["tree"], load_arrays(blob))
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RecursionError, struct.error) as error:
        raise _damaged(file, f"its content cannot be decoded ({error!r})") from error


def _encode(value: Any, path: str, arrays: list[np.ndarray]) -> Any:
    """Convert `value` to JSON types; arrays are appended to `arrays` and replaced by their index."""
    if isinstance(value, torch.Tensor):
        value = _tensor_to_array(value)
    elif isinstance(value, np.generic):
        value = value.item() if value.dtype.kind in "biufU" else np.asarray(value)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _SAFE_INT_BITS else {"$": "int", "value": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$": "float", "value": _infinite_or_nan(value)}
    if isinstance(value, np.ndarray):
        return _encode_array(value, path, arrays)
    if isinstance(value, list):
        return [_encode(item, f"{path}[{i}]", arrays) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$": "tuple", "value": [_encode(item, f"{path}[{i}]", arrays) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        return _encode_dict(value, path, arrays)
    raise CheckpointError(
        f"{path} is a {type(value).__name__}, which cannot be saved in a checkpoint; "
        "use dicts, lists, strings, numbers, None, numpy arrays or tensors"
    )


def _encode_dict(value: dict, path: str, arrays: list[np.ndarray]) -> dict:
    for key in value:
        if not is_key(key):
            raise CheckpointError(
                f"{path} has the key {key!r} of type {type(key).__name__}, which cannot be saved in a checkpoint; "
                "use strings, numbers, None or tuples of them"
            )
    if "$" not in value and all(isinstance(key, str) for key in value):
        return {key: _encode(item, f"{path}[{key!r}]", arrays) for key, item in value.items()}
    where = f"a key of {path}"
    pairs = [[_encode(k, where, arrays), _encode(v, f"{path}[{k!r}]", arrays)] for k, v in value.items()]
    return {"$": "dict", "value": pairs}


def _encode_array(array: np.ndarray, path: str, arrays: list[np.ndarray]) -> dict:
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 16 or array.dtype == np.longdouble:
        raise CheckpointError(
            f"{path} is an array of dtype {array.dtype}, which cannot be saved in a checkpoint; use a numeric dtype"
        )
    kind = "array"
    if array.dtype == np.complex128:  # not supported by safetensors
        kind, array = "complex128", np.stack([array.real, array.imag], axis=-1)
    # safetensors writes raw memory, ignoring strides and byte order.
    arrays.append(np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=None))
    return {"$": kind, "value": len(arrays) - 1}


def _tensor_to_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    try:
        return tensor.resolve_conj().resolve_neg().numpy()
    except TypeError:
        return tensor.float().numpy()


def _infinite_or_nan(value: float) -> str:
    """Return "inf", "-inf" or "nan", or the hex bits of a NaN that differs from `float("nan")`."""
    bits, name = struct.pack(">d", value), repr(float(value))
    return name if struct.pack(">d", float(name)) == bits else bits.hex()


def _decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {key: _decode(item, arrays) for key, item in value.items()}
    kind, inner = value["$"], value["value"]
    if kind == "int":
        return int(inner, 16)
    if kind == "float":
        is_name = inner in ("nan", "inf", "-inf")
        return float(inner) if is_name else struct.unpack(">d", bytes.fromhex(inner))[0]
    if kind == "tuple":
        return tuple(_decode(item, arrays) for item in inner)
    if kind == "dict":
        return {_decode(key, arrays): _decode(item, arrays) for key, item in inner}
    if kind == "array":
        return arrays[str(inner)]
    if kind == "complex128":
        return arrays[str(inner)].view(np.complex128)[..., 0]
    raise ValueError(f"unknown kind {kind!r}")


def _checked_content(file: Path, blob: bytes) -> dict:
    try:
        document = json.loads(blob)
        form, version, content = document["format"], document["version"], document["content"]
        known_form = form == FORMAT and isinstance(version, int) and version >= 1
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(file, f"it is truncated, or not a fastmarl checkpoint ({error!r})") from error
    if not known_form:
        raise _damaged(file, f"it has format {form!r}, version {version!r}")
    if version > VERSION:
        raise CheckpointError(
            f"{file} was written by a newer fastmarl (checkpoint version {version}, this one reads up to {VERSION}); "
            "upgrade fastmarl"
        )
    try:
        fits = document.get("sha256") == digest(content)
    except RecursionError:
        fits = False
    if not fits:
        raise _damaged(file, "its content does not match its checksum")
    if not _is_content(content):
        raise _damaged(file, "its content is not a checkpoint")
    return content


def _is_content(content: Any) -> bool:
    """Return True if `content` has the right entries, and names a file in the same directory."""
    if not isinstance(content, dict) or set(content) != {"tree", "arrays", "arrays_sha256"}:
        return False
    return isinstance(content["arrays"], str) and re.fullmatch(_ARRAYS_FILE, content["arrays"]) is not None


def _read(file: Path, hint: str) -> bytes:
    try:
        return read_file(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{file} does not exist; {hint}") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise CheckpointError(f"{file} cannot be read ({error}); {hint}") from error


def _damaged(file: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{file} is damaged: {problem}; use an earlier checkpoint or copy this one again")

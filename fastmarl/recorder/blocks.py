"""The file of a record: blocks one after the other, each of named arrays and a few words about them.

A block is a head (magic number, lengths, checksum of the rest, checksum of the head), a header in JSON, and the arrays'
bytes. A process that is killed while it writes leaves a block that is cut off, at the end of the file: readers see that
and stop before it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastmarl.errors import RecordingError
from fastmarl.kernels.fingerprints import checksum

MAGIC = b"fmr2"
FIELDS = struct.Struct("<4sIQQ")  # of a head: magic, bytes of the header, bytes of the arrays, checksum of both
HEAD_BYTES = FIELDS.size + 4
WORD = 8  # bytes; a block is as many words


def encoded(arrays: Mapping[str, np.ndarray], words: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """A block: its head, and the rest. `words` must be what JSON can hold."""
    form = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    header = json.dumps({"arrays": form, **words}, separators=(",", ":")).encode()
    data = [np.ascontiguousarray(array).data.cast("B") for array in arrays.values() if array.size]
    n_bytes = sum(map(len, data))
    body = b"".join([header, *data, bytes(-(len(header) + n_bytes) % WORD)])
    return _sealed(FIELDS.pack(MAGIC, len(header), len(body) - len(header), _checksum(body))), body


def _sealed(fields: bytes) -> bytes:
    """A head. With a checksum of its own, a damaged length is not taken for that of a block that is cut off."""
    return fields + zlib.crc32(fields).to_bytes(4, "little")


def _checksum(body: bytes) -> int:
    return int(checksum(np.frombuffer(body, np.uint64)))


@dataclass(frozen=True)
class Block:
    """One block of a file, as it was found.

    Attributes:
        path, offset: where it is.
        words: of its header, without the arrays.
    """

    path: Path
    offset: int
    words: dict[str, Any]
    _form: list[Any]
    _n_header: int
    _n_arrays: int
    _checksum: int

    def arrays(self, names: list[str] | None = None) -> dict[str, np.ndarray]:
        """Read some of the arrays; all of them, and then the checksum is looked at, for None.

        Raises:
            RecordingError: the file has changed, or the block is damaged.
        """
        try:
            return self._all_arrays() if names is None else self._arrays(names)
        except OSError as error:
            raise cant_read(self.path, error) from error

    def _arrays(self, names: list[str]) -> dict[str, np.ndarray]:
        found, at = {}, self.offset + HEAD_BYTES + self._n_header
        with self.path.open("rb") as file:
            for name, dtype, shape in self._form:
                n = _n_bytes(dtype, shape)
                if name in names:
                    file.seek(at)
                    found[name] = _array(file.read(n), dtype, shape, self)
                at += n
        return found

    def _all_arrays(self) -> dict[str, np.ndarray]:
        with self.path.open("rb") as file:
            file.seek(self.offset + HEAD_BYTES)
            body = file.read(self._n_header + self._n_arrays)
        if len(body) < self._n_header + self._n_arrays or _checksum(body) != self._checksum:
            raise RecordingError(f"{self.path}: the block at byte {self.offset} is damaged: its checksum is another")
        found, at = {}, self._n_header
        for name, dtype, shape in self._form:
            n = _n_bytes(dtype, shape)
            found[name] = _array(body[at : at + n], dtype, shape, self)
            at += n
        return found


def _n_bytes(dtype: str, shape: list[int]) -> int:
    return int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))


def _array(data: bytes, dtype: str, shape: list[int], block: Block) -> np.ndarray:
    if len(data) < _n_bytes(dtype, shape):
        raise RecordingError(f"{block.path}: the block at byte {block.offset} is cut off; has the file been changed?")
    return np.frombuffer(data, dtype).reshape(shape)


def blocks_in(path: Path) -> Iterator[Block]:
    """The blocks of a file that are whole, up to the first that is not.

    Raises:
        RecordingError: something in it is no block at all, or it can't be read.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise cant_read(path, error) from error
    with file:
        size = file.seek(0, 2)
        offset = 0
        while (block := _block_at(file, path, offset, size)) is not None:
            yield block
            offset += HEAD_BYTES + block._n_header + block._n_arrays


def cant_read(path: Path, error: OSError) -> RecordingError:
    """What to raise for an error of the system."""
    return RecordingError(f"can't read {path}, of a record of actions: {error.strerror or error}")


def _block_at(file: BinaryIO, path: Path, offset: int, size: int) -> Block | None:
    file.seek(offset)
    head = file.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    fields = head[: FIELDS.size]
    magic, n_header, n_arrays, total = FIELDS.unpack(fields)
    if magic != MAGIC:
        raise RecordingError(f"{path}: expected a block of a record of actions at byte {offset}, got {head[:4]!r}; "
                             f"to read what is before that, cut the file off there")  # fmt: skip
    if head != _sealed(fields):
        raise RecordingError(f"{path}: the head of the block at byte {offset} is damaged; to read what is before that, "
                             f"cut the file off there")  # fmt: skip
    if offset + HEAD_BYTES + n_header + n_arrays > size:
        return None
    try:
        words = json.loads(file.read(n_header))
        form = words.pop("arrays")
    except (ValueError, KeyError) as error:
        raise RecordingError(f"{path}: the block at byte {offset} is damaged: {error!r:.200}") from error
    return Block(path, offset, words, form, n_header, n_arrays, total)

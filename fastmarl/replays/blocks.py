"""The file format of a record, a sequence of blocks with named arrays and a small JSON header.

A block consists of a head (magic number, lengths, checksums of both parts, checksum of the head) and two parts. The
first part contains the JSON header and the arrays needed to find episodes, the second all other arrays. If a process is
killed while writing, the last block of the file is truncated; readers detect this and stop before it.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastmarl.core.checkpoint.sealed_json import open_file
from fastmarl.core.errors import RecordingError

MAGIC = b"fmr4"
# A head: magic; sizes in bytes of the header, of the first part with the header, of the second part; checksums of both.
FIELDS = struct.Struct("<4sIQQII")
HEAD_BYTES = FIELDS.size + 4

Arrays = dict[str, np.ndarray]


def encoded(arrays: Mapping[str, np.ndarray], words: Mapping[str, Any], listed: Collection[str]) -> tuple[bytes, bytes]:
    """Return the head and the two concatenated parts of a block, as bytes.

    Args:
        arrays: Name -> array.
        words: Name -> additional JSON-serializable values.
        listed: Names of the arrays in the first part.
    """
    parts = [
        {name: array for name, array in arrays.items() if (name in listed) is is_first} for is_first in (True, False)
    ]
    form = [[[name, array.dtype.str, list(array.shape)] for name, array in part.items()] for part in parts]
    header = json.dumps({"arrays": form, **words}, separators=(",", ":")).encode()
    first, second = (b"".join(array.tobytes() for array in part.values()) for part in parts)
    first = header + first
    fields = FIELDS.pack(MAGIC, len(header), len(first), len(second), zlib.crc32(first), zlib.crc32(second))
    return _sealed(fields), first + second


def _sealed(fields: bytes) -> bytes:
    """Append a checksum to a head, so that a damaged length is not mistaken for a truncated block."""
    return fields + zlib.crc32(fields).to_bytes(4, "little")


@dataclass(frozen=True)
class FileBlock:
    """A block of a file, without its arrays.

    Attributes:
        path: Path of the file.
        offset: Position of the block in the file, in bytes.
        words: The header, without the descriptions of arrays.
    """

    path: Path
    offset: int
    words: dict[str, Any]
    _form: list[Any]
    _n_header: int
    _sizes: tuple[int, int]
    _checksums: tuple[int, int]

    @property
    def end(self) -> int:
        return self.offset + HEAD_BYTES + sum(self._sizes)

    def arrays(self) -> Arrays:
        """Read all arrays of the block.

        Raises:
            RecordingError: If the file has changed, or the block is damaged.
        """
        try:
            with open_file(self.path) as file:
                file.seek(self.offset + HEAD_BYTES)
                first, second = map(file.read, self._sizes)
        except OSError as error:
            raise cant_read(self.path, error) from error
        if (len(first), len(second)) != self._sizes or (zlib.crc32(first), zlib.crc32(second)) != self._checksums:
            raise _damaged(self.path, self.offset)
        return _split(first, self._n_header, self._form[0]) | _split(second, 0, self._form[1])


def _split(part: bytes, begin: int, form: list[Any]) -> Arrays:
    found = {}
    for name, dtype, shape in form:
        n = math.prod(shape)
        found[name] = np.frombuffer(part, dtype, n, begin).reshape(shape) if n else np.zeros(shape, dtype)
        begin += found[name].nbytes
    return found


def blocks_in(path: Path) -> Iterator[tuple[FileBlock, Arrays]]:
    """Yield the complete blocks of a file with their listed arrays, up to the first truncated block.

    Raises:
        RecordingError: If the file cannot be read, or contains anything but blocks.
    """
    try:
        file = open_file(path)
    except OSError as error:
        raise cant_read(path, error) from error
    with file:
        size = file.seek(0, 2)
        offset = 0
        while (found := _block_at(file, path, offset, size)) is not None:
            yield found
            offset = found[0].end


def cant_read(path: Path, error: OSError) -> RecordingError:
    """Convert an OSError to a RecordingError."""
    return RecordingError(f"can't read {path} in a record of actions: {error.strerror or error}")


def _damaged(path: Path, offset: int) -> RecordingError:
    return RecordingError(f"{path}: the block at byte {offset} is damaged: its checksum does not match")


def _block_at(file: BinaryIO, path: Path, offset: int, size: int) -> tuple[FileBlock, Arrays] | None:
    file.seek(offset)
    head = file.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    fields = head[: FIELDS.size]
    magic, n_header, n_first, n_second, *checksums = FIELDS.unpack(fields)
    if magic != MAGIC:
        raise RecordingError(f"{path}: expected a block of a record of actions at byte {offset}, got {head[:4]!r}; "
                             f"to read the blocks before it, truncate the file there")  # fmt: skip
    if head != _sealed(fields):
        raise RecordingError(f"{path}: the head of the block at byte {offset} is damaged; to read the blocks before "
                             f"it, truncate the file there")  # fmt: skip
    if offset + HEAD_BYTES + n_first + n_second > size:
        return None
    first = file.read(n_first)
    if zlib.crc32(first) != checksums[0]:
        raise _damaged(path, offset)
    words = json.loads(first[:n_header])
    form = words.pop("arrays")
    block = FileBlock(path, offset, words, form, n_header, (n_first, n_second), (checksums[0], checksums[1]))
    return block, _split(first, n_header, form[0])

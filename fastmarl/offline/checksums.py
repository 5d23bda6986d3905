"""Checksums of Parquet files, one for each row group and one for the footer.

They lie between the last row group and the footer, where readers of Parquet do not look:

    row groups | uint64 [groups, 2], end and checksum of each | HEAD | footer, its length, "PAR1"

The checksum in HEAD covers everything behind the row groups. Parquet's own checksums cover the data of pages only, not
their headers and not the footer, where a flipped byte changes types, positions and nulls.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fastmarl.core.errors import OfflineError
from fastmarl.core.kernels.fingerprints import checksum

MAGIC, PARQUET = b"fmsums01", b"PAR1"
HEAD = struct.Struct("<8sQQ")  # MAGIC, number of groups, checksum
END = struct.Struct("<I4s")  # bytes of the footer, PARQUET
WORD, CHUNK_WORDS = 8, 131_072  # 1 MiB is read at once


def compile_checksum() -> None:
    """Compile what the thread that writes calls, in the thread that makes the writer.

    numba takes a lock to compile or load a function, and keeps it where an interrupt ends that in the main thread:
    another thread would wait for it for ever.
    """
    checksum(np.zeros(1, np.uint64))


class RowGroupChecksums:
    """Makes the checksums of a file while it is written.

    Args:
        path: of the file, which grows at its end.
    """

    def __init__(self, path: Path):
        self._path = path
        self._groups: list[tuple[int, int]] = []

    def add_group(self) -> None:
        """Add what was written since the last call. The system still has it in memory."""
        with self._path.open("rb") as file:
            self._add(file, file.seek(0, 2))

    def finish(self) -> None:
        """Put the checksums into the file, which Parquet's writer has closed."""
        with self._path.open("r+b") as file:
            size = file.seek(0, 2)
            n_footer = END.size + END.unpack(_last(file, size, END.size))[0]
            end = size - n_footer
            self._add(file, end)  # the first bytes of a file without rows
            footer = _last(file, size, n_footer)
            groups = np.array(self._groups, "<u8").tobytes()
            file.seek(end)
            file.write(groups + _head(groups, len(self._groups), footer) + footer)

    def _add(self, file: BinaryIO, end: int) -> None:
        begin = self._groups[-1][0] if self._groups else 0
        if begin < end:
            self._groups.append((end, _checksum_of_file(file, begin, end)))


def check(path: Path) -> None:
    """Verify the checksums of a file.

    Raises:
        OfflineError: it is damaged, or has no checksums.
    """
    with path.open("rb") as file:
        groups, _ = _groups_and_footer(file, path)
        begin = 0
        for number, (end, expected) in enumerate(groups):
            if _checksum_of_file(file, begin, end) != expected:
                raise OfflineError(f"row group {number} of {path} is damaged: its checksum does not match; restore "
                                   f"the file from a copy")  # fmt: skip
            begin = end


def footer_of(path: Path) -> bytes:
    """The footer of a file with its length, held against its checksum. Row groups are not read.

    Raises:
        OfflineError: it is damaged, or has no checksums.
    """
    with path.open("rb") as file:
        return _groups_and_footer(file, path)[1]


def _groups_and_footer(file: BinaryIO, path: Path) -> tuple[list[list[int]], bytes]:
    """([end and checksum of each row group], footer)."""
    size = file.seek(0, 2)
    end = _last(file, size, END.size)
    n_footer = END.size + END.unpack(end)[0] if end.endswith(PARQUET) else 0
    footer, head = _last(file, size, n_footer), _last(file, size - n_footer, HEAD.size)
    n_groups = HEAD.unpack(head)[1] if head else 0
    end_of_groups = size - n_footer - HEAD.size
    groups = _last(file, end_of_groups, 2 * WORD * n_groups)
    found = np.frombuffer(groups, "<u8").reshape(-1, 2).tolist()
    if not found or found[-1][0] + len(groups) != end_of_groups or head != _head(groups, n_groups, footer):
        raise OfflineError(f"can't read {path}: its footer lacks the checksum that a ParquetWriter writes; is it "
                           f"damaged, copied in part, or of another writer?")  # fmt: skip
    return found, footer


def _last(file: BinaryIO, end: int, n_bytes: int) -> bytes:
    """The bytes before `end`; none if there are not as many."""
    if n_bytes > end:
        return b""
    file.seek(end - n_bytes)
    return file.read(n_bytes)


def _head(groups: bytes, n_groups: int, footer: bytes) -> bytes:
    covered = groups + n_groups.to_bytes(WORD, "little") + footer
    words = np.frombuffer(bytearray(covered + bytes(-len(covered) % WORD)), np.uint64)  # writable, as all others
    return HEAD.pack(MAGIC, n_groups, int(checksum(words)))


def _checksum_of_file(file: BinaryIO, begin: int, end: int) -> int:
    """Checksum of a range of a file's bytes."""
    file.seek(begin)
    words, total = np.empty(CHUNK_WORDS, np.uint64), 0
    data = words.view(np.uint8)
    for at in range(begin, end, len(data)):
        n = file.readinto(data[: end - at])  # type: ignore[attr-defined]
        n_words = -(-n // WORD)
        data[n : n_words * WORD] = 0
        total = (total * 3 + int(checksum(words[:n_words]))) % 2**64
    return total

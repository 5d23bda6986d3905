"""Checksums of the lines of a file of batches, in a hidden file beside it.

The lines themselves are those of RLlib, which have no room for one. Files without checksums, such as RLlib's, are read
as they are.
"""

import zlib
from pathlib import Path


def checksums_file(path: Path) -> Path:
    """The file with the checksums of the lines of `path`."""
    return path.with_name(f".{path.name}.crc32")


def checksum(line: bytes) -> bytes:
    """A line of that file for a line of the other."""
    return b"%08x\n" % zlib.crc32(line)


def checksums_of(path: Path) -> list[bytes]:
    """The checksums of the first lines of a file; none if it has no such file beside it."""
    file = checksums_file(path)
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []

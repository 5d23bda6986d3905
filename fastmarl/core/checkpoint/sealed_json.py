"""Safe reads and atomic replacement of files, and JSON with a content checksum."""

import errno
import hashlib
import json
import os
import stat
import uuid
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any


def digest(content: Any) -> str:
    """Return the SHA-256 of plain data; a round trip through JSON does not change it."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def sealed(content: dict[str, Any]) -> str:
    """Return these entries and their checksum as JSON text."""
    return json.dumps({**content, "sha256": digest(content)}, indent=1)


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write these entries and their checksum to a file."""
    replace_file(path, sealed(content).encode())


def open_file(path: Path) -> BufferedReader:
    """Open a file for reading.

    Raises:
        OSError: If it cannot be opened, or is a pipe or a device, where opening or reading might block forever.
    """
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_file(path: Path, most_bytes: int = -1) -> bytes:
    """Return the content of a file; raise OSError as in `open_file()`, or if it has more than `most_bytes`."""
    with open_file(path) as file:
        if 0 <= most_bytes < os.fstat(file.fileno()).st_size:
            raise OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes", os.fspath(path))
        try:
            return file.read()
        except MemoryError:
            raise OSError(errno.EFBIG, "does not fit in memory", os.fspath(path)) from None


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: it contains either the old or the new content, even after a system crash.

    A killed process may leave a temporary file, `.NAME.` followed by 32 hex digits; errors and interrupts do not.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_seal(content: dict[str, Any]) -> dict[str, Any]:
    """Verify the checksum and return the other entries.

    Raises:
        ValueError: If the checksum does not match.
    """
    entries = {key: value for key, value in content.items() if key != "sha256"}
    if content.get("sha256") != digest(entries):
        raise ValueError("its content does not match its checksum")
    return entries

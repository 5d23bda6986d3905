"""Atomic replacement of files, and JSON with a checksum of its content."""

import hashlib
import json
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any


def digest(content: Any) -> str:
    """Return the SHA-256 of plain data, which is unchanged by writing and reading the data as JSON."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def sealed(content: dict[str, Any]) -> str:
    """Return these entries and their checksum as JSON text."""
    return json.dumps({**content, "sha256": digest(content)}, indent=1)


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write these entries and their checksum to a file."""
    replace_file(path, sealed(content).encode())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: it has the old or the new content, even after a crash of the machine.

    A killed process may leave a temporary file, `.NAME.` followed by 32 hex digits; errors and interrupts don't.
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
    """Return the entries without their checksum.

    Raises:
        ValueError: If the checksum does not match.
    """
    entries = {key: value for key, value in content.items() if key != "sha256"}
    if content.get("sha256") != digest(entries):
        raise ValueError("its content does not match its checksum")
    return entries

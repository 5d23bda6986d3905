"""Files that are whole or not there, and JSON with a checksum of what is in it."""

import hashlib
import json
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any


def digest(content: Any) -> str:
    """SHA-256 of plain data, which is the same after they have been written and read."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def sealed(content: dict[str, Any]) -> str:
    """A text of these entries and their checksum."""
    return json.dumps({**content, "sha256": digest(content)}, indent=1)


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write these entries and their checksum."""
    replace_file(path, sealed(content).encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that it is the old one or the new one, also after a crash of the machine.

    A process that is killed may leave another file, `.NAME.` and 32 hexadecimal digits; no error and no interrupt does.
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
    """The entries without their checksum.

    Raises:
        ValueError: they have another checksum.
    """
    entries = {key: value for key, value in content.items() if key != "sha256"}
    if content.get("sha256") != digest(entries):
        raise ValueError("its content does not match its checksum")
    return entries

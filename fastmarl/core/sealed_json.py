"""JSON files with a checksum of what is in them."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def digest(content: Any) -> str:
    """SHA-256 of plain data, which is the same after they have been written and read."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def sealed(content: dict[str, Any]) -> str:
    """A text of these entries and their checksum."""
    return json.dumps({**content, "sha256": digest(content)}, indent=1)


def hidden(path: Path) -> Path:
    """The name of a file while it is being written."""
    return path.with_name(f".{path.name}.tmp")


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write these entries and their checksum. The file gets its name when it is whole."""
    hidden(path).write_text(sealed(content))
    os.replace(hidden(path), path)


def check_seal(content: dict[str, Any]) -> dict[str, Any]:
    """The entries without their checksum.

    Raises:
        ValueError: they have another checksum.
    """
    entries = {key: value for key, value in content.items() if key != "sha256"}
    if content.get("sha256") != digest(entries):
        raise ValueError("its content does not match its checksum")
    return entries

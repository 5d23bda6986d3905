"""Benchmark results in files of JSON lines, to which each run appends a record with its date, commit and machine."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from fastmarl.core import __version__
from fastmarl.core.errors import ConfigError
from fastmarl.core.processes.cores import usable_cores

Row = dict[str, Any]
Figures = dict[str, list[Row]]  # section -> its rows
Orders = Mapping[str, Callable[[Row], tuple]]  # section -> row key for sorting and replacing rows

CLONE = Path(__file__).parents[2]
SOURCES = ("fastmarl", "src_ext", "setup.py")  # results depend on these
CORE_PACKAGES = ("numpy", "numba", "gymnasium", "torch", "safetensors")
LISTED_PACKAGES = (*CORE_PACKAGES, "pettingzoo", "mpe2", "magent2", "rich", "matplotlib", "ray")


class RecordFile:
    """A file of records to which this run appends its own.

    Args:
        path: An existing file, a new one, or a stream such as /dev/stdout; None writes nothing.
        command: Name of the command that measures.

    Raises:
        ConfigError: If the file does not contain records.
    """

    def __init__(self, path: Path | None, command: str):
        self._path = path
        self._record: dict[str, Any] = {"command": command}
        self._is_stream = path is not None and is_stream(path)
        data = path.read_bytes() if path is not None and path.is_file() else b""
        self._earlier = _objects(data, f"--json {path}")
        self._begins = b"" if data[-1:] in (b"", b"\n") else b"\n"
        self._size = len(data)

    def write(self, figures: dict[str, Any], *, is_final: bool) -> None:
        """Append the record, or replace the one appended by this run. A stream receives only the final record."""
        if self._path is None or (self._is_stream and not is_final):
            return
        if "date" not in self._record:
            self._record |= provenance()
        line = self._begins + json.dumps({**self._record, **figures}).encode() + b"\n"
        with self._path.open("ab") as file:
            if not self._is_stream:
                file.truncate(self._size)  # earlier records are never rewritten
            file.write(line)

    def merged(self, figures: Figures, orders: Orders) -> Figures:
        """Merge `figures` with earlier records for the sections in `orders`; a later row replaces one with its key.

        Args:
            figures: Section -> rows.
            orders: Section -> sort key.

        Returns:
            The sorted rows of these sections, and the other sections of `figures`.

        Raises:
            ConfigError: If an earlier record has no rows of this benchmark.
        """
        merged = dict(figures)
        for section, order in orders.items():
            try:
                rows = {order(row): row for record in (*self._earlier, figures) for row in record.get(section, ())}
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"--json {self._path}: not results of this benchmark: {error!r}") from error
            merged[section] = [rows[key] for key in sorted(rows)]
        return merged


def is_stream(path: Path) -> bool:
    """Return whether the path, such as /dev/stdout, exists and is neither a file nor a directory."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _objects(data: bytes, where: str) -> list[dict[str, Any]]:
    """Decode consecutive JSON objects."""
    objects, text = [], ""
    try:
        text = data.decode().strip()
        while text:
            value, end = json.JSONDecoder().raw_decode(text)
            objects.append(dict(value))
            text = text[end:].lstrip()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: expected one JSON object per line, got {text:.40}") from error
    return objects


def provenance() -> dict[str, Any]:
    """Return the time, software and machine of a measurement as JSON data.

    "date": the current time, UTC; "commit": None outside a clone; "dirty": whether sources differ from the commit;
    "build"; "machine": "cpu", "cores", "usable_cores", "gpu" (or None), "os"; "versions" of packages.
    """
    import torch

    commit, dirty = commit_of(CLONE)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "build": build(),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "usable_cores": usable_cores(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "os": platform.platform(),
        },
        "versions": versions(),
    }


def commit_of(folder: Path) -> tuple[str, bool] | tuple[None, None]:
    """Return (commit, whether `SOURCES` differ from it) if `folder` is the top of a clone, else (None, None)."""

    def git(*args: str) -> str:
        command = ["git", "-C", str(folder), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    try:
        top, commit = git("rev-parse", "--show-toplevel", "HEAD").splitlines()
        if not folder.samefile(top):  # such as a virtual environment in a user project
            return None, None
        return commit, bool(git("status", "--porcelain", "--", *SOURCES))
    except (OSError, subprocess.CalledProcessError):  # no git, no clone, or a clone without commits
        return None, None


def build() -> str:
    """Return the kind of build of the compiled extensions."""
    from fastmarl.core.native import _build

    checked, sanitized = "checked (bounds, None, initialisation)", "sanitized (addresses, undefined behaviour)"
    return checked if _build.CHECKED else sanitized if _build.SANITIZED else "release"


def versions() -> dict[str, str]:
    """Return the installed version, or "not installed", of each package."""

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "not installed"

    return {
        "fastmarl": __version__,
        "python": platform.python_version(),
        **{package: version(package) for package in LISTED_PACKAGES},
    }


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else []
    return names[0] if names else platform.processor() or platform.machine()

"""Checkpoints on file systems of pyarrow, such as S3, by copies of local folders."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fastmarl.core.errors import CheckpointError, ConfigError


@contextmanager
def written_to(path: str | os.PathLike[str], filesystem: Any) -> Iterator[str | os.PathLike[str]]:
    """Yield a folder to write to, and copy it to `path` on the file system at the end; None: yield `path` itself.

    Raises:
        ConfigError: If `filesystem` is not one of pyarrow.
    """
    if filesystem is None:
        yield path
        return
    copy_files = _copy_files(filesystem)
    with tempfile.TemporaryDirectory(prefix="fastmarl-") as folder:
        yield folder
        filesystem.create_dir(os.fspath(path))
        copy_files(folder, os.fspath(path), destination_filesystem=filesystem)


@contextmanager
def read_from(path: str | os.PathLike[str], filesystem: Any) -> Iterator[str | os.PathLike[str]]:
    """Yield a folder with a copy of `path` on the file system; None: yield `path` itself.

    Raises:
        CheckpointError: If `path` does not exist.
        ConfigError: If `filesystem` is not one of pyarrow.
    """
    if filesystem is None:
        yield path
        return
    copy_files = _copy_files(filesystem)
    with tempfile.TemporaryDirectory(prefix="fastmarl-") as folder:
        try:
            copy_files(os.fspath(path), folder, source_filesystem=filesystem)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} does not exist on {type(filesystem).__name__}") from error
        yield folder


def _copy_files(filesystem: Any) -> Any:
    """Return pyarrow's function after checking `filesystem`. Without pyarrow it can't be a valid one."""
    try:
        fs: Any = import_module("pyarrow.fs")
    except ImportError:
        fs = None
    if fs is None or not isinstance(filesystem, fs.FileSystem):
        raise ConfigError(f"filesystem must be None or a pyarrow.fs.FileSystem, got {filesystem!r:.200}")
    return fs.copy_files

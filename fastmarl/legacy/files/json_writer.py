"""A writer of batches to JSON files, which the JsonReader of RLlib can also read."""

import os
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns
from fastmarl.legacy.batches.packing import can_pack, check_can_pack
from fastmarl.legacy.files.interfaces import IOContext, NoopOutput, OutputWriter
from fastmarl.legacy.files.json_format import checksum, checksums_file, to_json

MAX_FILE_SIZE = 64 * 1024 * 1024


@public("fastmarl.legacy")
class JsonWriter(OutputWriter):
    """Writes each batch as a JSON line, and the checksum of the line to a hidden file next to the JSON file.

    Args:
        path: Directory of the files, which is created if it does not exist.
        ioctx: IOContext with the worker index for the names of the files; None for index 0.
        max_file_size: Size in bytes after which a new file is started.
        compress_columns: Names of columns to pack (requires lz4); None means "obs" and "new_obs" if lz4 is installed.

    Attributes:
        path, ioctx, max_file_size, compress_columns: The constructor arguments.
        file_index: Number of files created.
        path_is_uri: Always False, because files are local.

    Raises:
        ConfigError: If `compress_columns` names columns, but lz4 is not installed.
    """

    path_is_uri = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        ioctx: IOContext | None = None,
        max_file_size: int = MAX_FILE_SIZE,
        compress_columns: Collection[str] | None = None,
    ):
        if compress_columns is None:
            compress_columns = (Columns.OBS, Columns.NEXT_OBS) if can_pack() else ()
        elif compress_columns:
            check_can_pack("compress_columns")
        self.compress_columns, self.max_file_size = compress_columns, max_file_size
        self.ioctx = ioctx
        self._worker_index = 0 if ioctx is None else ioctx.worker_index
        self.path = Path(path).expanduser()
        self.path.mkdir(parents=True, exist_ok=True)
        self.file_index = 0
        self._files: tuple[BinaryIO, BinaryIO] | None = None  # (lines, checksums)

    @property
    def cur_file(self) -> BinaryIO | None:
        """The open JSON file, or None before the first batch and after `close()`."""
        return None if self._files is None else self._files[0]

    @property
    def bytes_written(self) -> int:
        """Size in bytes of the open JSON file."""
        return 0 if self._files is None else self._files[0].tell()

    def write(self, sample_batch: Any) -> None:
        line = to_json(sample_batch, self.compress_columns).encode() + b"\n"
        if self._files is None or self.bytes_written >= self.max_file_size:
            self.close()
            file = self._new_file()
            self._files = file, checksums_file(Path(file.name)).open("wb")
        lines, checksums = self._files
        try:
            for file, data in ((checksums, checksum(line)), (lines, line)):  # checksum first, so every line has one
                file.write(data)
                file.flush()
        except BaseException:
            self.close()  # the files may end with a partial line, or with a checksum without a line
            raise

    def close(self) -> None:
        """Close the files; a later `write()` creates new ones."""
        files, self._files = self._files or (), None  # even if closing fails, for example on a full disk
        for file in files:
            file.close()

    def _new_file(self) -> BinaryIO:
        """Create a file with an unused name, even if other processes write to the same directory."""
        began = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        while True:
            name = f"output-{began}_worker-{self._worker_index}_{self.file_index}.json"
            self.file_index += 1
            try:
                return (self.path / name).open("xb")
            except FileExistsError:
                continue


def make_output_writer(io_context: IOContext) -> OutputWriter:
    """Create the writer for the option `output`.

    Raises:
        ConfigError: If `output` is invalid, or it is "logdir" and the worker has no `log_dir`.
    """
    config = io_context.config
    given = config.output
    if given is None:
        return NoopOutput()
    if callable(given):
        return given(io_context)
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"output must be None, a folder, \"logdir\" or a function (io_context) -> OutputWriter, got "
                          f"{given!r}")  # fmt: skip
    if given == "logdir":
        if io_context.log_dir is None:
            raise ConfigError('output="logdir" needs a directory; pass RolloutWorker(..., log_dir=...)')
        given = io_context.log_dir
    return JsonWriter(given, io_context, config.output_max_file_size, config.output_compress_columns)

"""The writer that a worker's option `output` asks for."""

import os

from fastmarl.core.errors import ConfigError
from fastmarl.legacy.files.io_context import IOContext
from fastmarl.legacy.files.json_writer import JsonWriter
from fastmarl.legacy.files.output_writer import NoopOutput, OutputWriter


def make_output_writer(io_context: IOContext) -> OutputWriter:
    """None: nothing is written. A function is called; else it is a folder, or "logdir" for the worker's `log_dir`.

    Raises:
        ConfigError: it is something else, or the worker has no `log_dir`.
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
            raise ConfigError('output="logdir" needs a log_dir: RolloutWorker(..., log_dir=...)')
        given = io_context.log_dir
    return JsonWriter(given, io_context, config.output_max_file_size, config.output_compress_columns)

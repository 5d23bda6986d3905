"""Makes the writer for a worker's option `output`."""

import os

from fastmarl.core.errors import ConfigError
from fastmarl.legacy.files.interfaces import IOContext, NoopOutput, OutputWriter
from fastmarl.legacy.files.json_writer import JsonWriter


def make_output_writer(io_context: IOContext) -> OutputWriter:
    """Make the writer for the option `output`.

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
            raise ConfigError('output="logdir" needs a log_dir: RolloutWorker(..., log_dir=...)')
        given = io_context.log_dir
    return JsonWriter(given, io_context, config.output_max_file_size, config.output_compress_columns)

"""Where a worker's batches go to."""

from abc import ABC, abstractmethod
from typing import Any

from fastmarl.errors import ConfigError
from fastmarl.legacy.io_context import IOContext


class OutputWriter(ABC):
    """Writes batches."""

    @abstractmethod
    def write(self, sample_batch: Any) -> None:
        """Write a SampleBatch or MultiAgentBatch."""

    def close(self) -> None:
        """Nothing more will be written."""
        return


class NoopOutput(OutputWriter):
    """Writes nothing."""

    def write(self, sample_batch: Any) -> None:
        pass


def make_output_writer(io_context: IOContext) -> OutputWriter:
    """That of the option `output`."""
    given = io_context.config.output
    if given is None:
        return NoopOutput()
    if callable(given):
        return given(io_context)
    raise ConfigError(f"output must be None or a function (io_context) -> OutputWriter, got {given!r}")

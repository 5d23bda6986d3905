"""Where a worker's batches come from."""

from abc import ABC, abstractmethod
from typing import Any

from fastmarl.errors import ConfigError
from fastmarl.legacy.io_context import IOContext


class InputReader(ABC):
    """Reads batches."""

    @abstractmethod
    def next(self) -> Any:
        """The next SampleBatch or MultiAgentBatch."""


def make_input_reader(io_context: IOContext) -> InputReader:
    """That of the option `input_`."""
    given = io_context.config.input_
    if given == "sampler":
        return io_context.default_sampler_input()
    if callable(given):
        return given(io_context)
    raise ConfigError(f'input_ must be "sampler" or a function (io_context) -> InputReader, got {given!r}')

"""Makes the reader for a worker's option `input_`."""

import math
import random
from collections.abc import Mapping
from typing import Any

from fastmarl.core.errors import ConfigError
from fastmarl.core.public import public
from fastmarl.legacy.files.interfaces import InputReader, IOContext
from fastmarl.legacy.files.json_reader import JsonReader


@public("fastmarl.legacy")
class MixedInput(InputReader):
    """Reads each batch from a randomly drawn source.

    Args:
        dist: Source -> its share; shares sum to 1. A source is "sampler", an input of `JsonReader`, or a function
            `(io_context) -> InputReader`.
        ioctx: The worker's IOContext.
    """

    def __init__(self, dist: Mapping[Any, float], ioctx: IOContext):
        if not math.isclose(sum(dist.values()), 1.0) or min(dist.values()) < 0:
            raise ConfigError(f"expected shares that sum to 1, got {dict(dist)!r}")
        self._readers = [_reader(given, ioctx) for given in dist]
        self._shares = list(dist.values())
        self._random = random.Random(None if ioctx.config.seed is None else f"{ioctx.config.seed} mixed")

    def next(self) -> Any:
        [reader] = self._random.choices(self._readers, self._shares)
        return reader.next()


@public("fastmarl.legacy")
class ShuffledInput(InputReader):
    """Keeps batches in a buffer and returns random ones from it.

    Args:
        child: Reader of the batches.
        n: Number of batches in the buffer; 1 or less: batches are returned in the order in which they are read.
        seed: Seed of the draws.
    """

    def __init__(self, child: InputReader, n: int = 0, seed: int | None = None):
        self._child, self._n = child, n
        self._buffer: list[Any] = []
        self._random = random.Random(seed)

    def next(self) -> Any:
        if self._n <= 1:
            return self._child.next()
        while len(self._buffer) < self._n:
            self._buffer.append(self._child.next())
        self._buffer[self._random.randrange(self._n)] = self._child.next()
        return self._random.choice(self._buffer)


def make_input_reader(io_context: IOContext) -> InputReader:
    """Make the reader for the option `input_`; batches from files go through a buffer of `shuffle_buffer_size`."""
    config = io_context.config
    if isinstance(config.input_, Mapping):
        reader: InputReader = MixedInput(config.input_, io_context)
    else:
        reader = _reader(config.input_, io_context)
    if isinstance(reader, MixedInput | JsonReader):
        return ShuffledInput(reader, config.shuffle_buffer_size, config.seed)
    return reader


def _reader(given: Any, io_context: IOContext) -> InputReader:
    if given == "sampler":
        return io_context.default_sampler_input()
    if callable(given):
        return given(io_context)
    return JsonReader(given, io_context)

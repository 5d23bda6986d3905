"""Readers for the worker option `input_`."""

import importlib
import math
import os
import random
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.legacy.files.dataset_reader import DatasetReader
from fastmarl.legacy.files.interfaces import InputReader, IOContext
from fastmarl.legacy.files.json_reader import JsonReader

CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
REGISTERED: dict[str, Callable[[IOContext], InputReader]] = {}


@public("fastmarl.legacy")
class MixedInput(InputReader):
    """Reads each batch from a randomly sampled source.

    Args:
        dist: Source -> probability; probabilities sum to 1. A source is any value of the option `input_` except a dict.
        ioctx: IOContext of the worker.

    Attributes:
        choices: The readers.
        p: Probabilities of the readers.
    """

    def __init__(self, dist: Mapping[Any, float], ioctx: IOContext):
        if not math.isclose(sum(dist.values()), 1.0) or min(dist.values()) < 0:
            raise ConfigError(f"expected non-negative probabilities that sum to 1, got {dict(dist)!r}")
        self.choices = [_reader(given, ioctx) for given in dist]
        self.p = list(dist.values())
        self._random = random.Random(None if ioctx.config.seed is None else f"{ioctx.config.seed} mixed")

    def next(self) -> Any:
        [reader] = self._random.choices(self.choices, self.p)
        return reader.next()


@public("fastmarl.legacy")
class ShuffledInput(InputReader):
    """Keeps batches in a buffer and returns random ones from it.

    Args:
        child: Reader of the batches.
        n: Number of batches in the buffer; if 1 or less, batches are returned in reading order.
        seed: Seed for sampling.

    Attributes:
        child, n: The arguments `child` and `n`.
        buffer: The batches in the buffer.
    """

    def __init__(self, child: InputReader, n: int = 0, seed: int | None = None):
        self.child, self.n = child, n
        self.buffer: list[Any] = []
        self._random = random.Random(seed)

    def next(self) -> Any:
        if self.n <= 1:
            return self.child.next()
        while len(self.buffer) < self.n:
            self.buffer.append(self.child.next())
        self.buffer[self._random.randrange(self.n)] = self.child.next()
        return self._random.choice(self.buffer)


def register_input(name: str, input_creator: Callable[[IOContext], InputReader]) -> None:
    """Register an input reader by name for the option `input_`, replacing an earlier one with that name.

    Args:
        name: Name of the reader.
        input_creator: Function (io_context) -> InputReader.

    Raises:
        ConfigError: If `input_creator` is not callable.
    """
    if not callable(input_creator):
        raise ConfigError(f"input_creator must be a function (io_context) -> InputReader, got {input_creator!r}")
    REGISTERED[name] = input_creator


def make_input_reader(io_context: IOContext) -> InputReader | None:
    """Create the reader for the option `input_`; batches from files pass through a shuffle buffer.

    Returns:
        The reader, or None for "sampler" if the worker has no envs.
    """
    config = io_context.config
    if isinstance(config.input_, Mapping):
        reader: InputReader = MixedInput(config.input_, io_context)
    elif config.input_ == "sampler":
        return io_context.default_sampler_input()
    else:
        reader = _reader(config.input_, io_context)
    if isinstance(reader, MixedInput | JsonReader):
        return ShuffledInput(reader, config.shuffle_buffer_size, config.seed)
    return reader


def _reader(given: Any, io_context: IOContext) -> InputReader:
    if given == "sampler":
        sampler = io_context.default_sampler_input()
        if sampler is None:
            raise ConfigError('the input "sampler" needs an env, but this worker has none; set env=...')
        return sampler
    if callable(given):
        return given(io_context)
    if given == "dataset":
        return DatasetReader(_shard(io_context), io_context)
    if isinstance(given, str) and (creator := _registered(given)) is not None:
        return creator(io_context)
    if isinstance(given, str) and (reader_class := _class_at(given)) is not None:
        return reader_class(ioctx=io_context)
    if isinstance(given, str) and CLASS_PATH.fullmatch(given) and not os.path.exists(given) and "." not in given:
        raise ConfigError(f"input_={given!r} is neither an existing file or folder nor a registered input of "
                          f"{sorted(REGISTERED)}; see register_input()")  # fmt: skip
    return JsonReader(given, io_context)


def _shard(io_context: IOContext) -> Any:
    shards, index = io_context.worker.dataset_shards, io_context.worker_index
    if shards is None or not 0 <= index < len(shards):
        raise ConfigError(f'input_="dataset" needs RolloutWorker(dataset_shards=[...]) with an entry {index}, got '
                          f"{'none' if shards is None else f'{len(shards)} entries'}")  # fmt: skip
    return shards[index]


def _registered(name: str) -> Callable[[IOContext], InputReader] | None:
    """Return the creator registered under this name in fastmarl or Ray, or None."""
    of_ray: Any = sys.modules.get("ray.tune.registry")
    if name in REGISTERED or of_ray is None or not of_ray.registry_contains_input(name):
        return REGISTERED.get(name)
    creator: Callable[[IOContext], InputReader] = of_ray.registry_get_input(name)
    return creator


def _class_at(path: str) -> Any:
    """Return the class at a path such as "package.module.Reader", or None if `path` names no existing module.

    Raises:
        ConfigError: If the module has no such class.
    """
    module, _, name = path.rpartition(".")
    if not module or not CLASS_PATH.fullmatch(path) or os.path.exists(path):
        return None
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None
        raise
    if not hasattr(found, name):
        raise ConfigError(f"input_={path!r}: module {module} has no attribute {name!r}")
    return getattr(found, name)

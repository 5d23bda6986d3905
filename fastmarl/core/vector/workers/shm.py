"""Memory shared by a worker process and the runner, with the same layout on both sides.

It has a file descriptor but no name, so the system frees it when the last process using it exits for any reason.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastmarl.core.envs.remote import EnvDescription
from fastmarl.core.vector.workers.slots import ResultSlots, action_slots

LINE = 64  # bytes per cache line; arrays never share one


class EnvSlots:
    """Slots of an env in the shared memory, for results and actions."""

    def __init__(self, env: EnvDescription, arrays: Arrays):
        self.results = ResultSlots({a: obs for a, (obs, _) in env.spaces.items()}, env.state_space, arrays.cut)
        self.actions = action_slots({a: action for a, (_, action) in env.spaces.items()}, arrays.cut)


class WorkerMemory:
    """All shared memory of a worker.

    Args:
        envs: Descriptions of its envs.
        fd: File descriptor of the memory to map; None for memory that is not shared.

    Attributes:
        slots: EnvSlots, by index of the env in the worker.
        at: int64 [1], index of the env being called, or -1.
    """

    def __init__(self, envs: Sequence[EnvDescription], fd: int | None = None):
        arrays = Arrays(None if fd is None else mmap.mmap(fd, os.fstat(fd).st_size))
        self.at = arrays.cut((1,), np.int64)
        self.slots = [EnvSlots(env, arrays) for env in envs]
        self.size = arrays.size


class Arrays:
    """Places arrays one after the other in `memory`; if it is None, allocates each array separately."""

    def __init__(self, memory: mmap.mmap | np.ndarray | None):
        self._memory = memory
        self.size = 0

    def cut(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        n = math.prod(shape)
        start, self.size = self.size, self.size + max(1, -(-n * np.dtype(dtype).itemsize // LINE)) * LINE
        if self._memory is None:
            return np.empty(shape, dtype)
        return np.frombuffer(self._memory, dtype, n, start).reshape(shape)


def new_memory_file(envs: Sequence[EnvDescription]) -> int:
    """Create memory for these envs, and return its file descriptor."""
    fd = os.memfd_create("fastmarl")
    os.ftruncate(fd, WorkerMemory(envs).size)
    return fd

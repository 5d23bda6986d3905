"""The latest weights, in memory that the learner shares with the sampling processes."""

import fcntl
import mmap
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fastmarl.core.errors import ConfigError, SamplerTimeoutError
from fastmarl.core.vector.workers.shm import Arrays

Form = dict[str, dict[str, tuple[tuple[int, ...], np.dtype]]]  # module id -> name -> (shape, dtype)
Weights = Mapping[str, Mapping[str, Any]]  # module id -> name -> array
NUMBERS = "fiub"  # kinds of dtypes
BEING_WRITTEN = -1  # in place of a version
LOCK_TIMEOUT_S = 30.0  # a lock is held for milliseconds, while weights are copied, unless its process is stopped
LOOKS_EVERY_S = 1e-4


def form_of(weights: Weights) -> Form:
    """Return the shapes and dtypes of all weights.

    Raises:
        ConfigError: If a value, such as the extra state of a layer, is not an array of numbers.
    """
    form: Form = {}
    for module_id, arrays in weights.items():
        form[module_id] = {}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in NUMBERS:
                raise ConfigError(f"weights must be numeric arrays to be shared, got {type(array).__name__} for "
                                  f"{name!r} of module {module_id!r}")  # fmt: skip
            form[module_id][name] = array.shape, array.dtype
    return form


class SharedWeights:
    """Weights of all modules as a single flat array, with their version.

    Reading and writing hold a system lock on the file, so no process sees a mix of old and new weights. If a process is
    killed, the system releases its lock.

    Args:
        form: Names, shapes and dtypes of the weights.
        fd: Descriptor returned by `new_weights_file(form)`, which is closed with this object.
    """

    def __init__(self, form: Form, fd: int):
        self.form = form
        self.fd = fd
        # The memory outlives the descriptor while it is mapped. Runs automatically only if the object was never closed.
        self.close = weakref.finalize(self, os.close, fd)
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self._version, self._arrays = _cut(form, Arrays(self._memory))

    def check(self, weights: Weights) -> None:
        """Check that `write()` accepts these weights.

        Raises:
            ConfigError: If it does not.
        """
        for module_id, form in form_of(weights).items():
            own = self.form.get(module_id)
            if form != own:
                problem = "there is no such module" if own is None else "they belong to a different network"
                raise ConfigError(f"weights of module {module_id!r}: {problem}; the modules are {list(self.form)}")

    def write(self, weights: Weights, version: int) -> None:
        """Replace the weights of these modules; other modules are unchanged.

        Raises:
            SamplerTimeoutError: If another process has held the lock for too long.
        """
        with self._locked(fcntl.LOCK_EX):
            self._version[0] = BEING_WRITTEN
            for module_id, arrays in weights.items():
                for name, array in arrays.items():
                    self._arrays[module_id][name][...] = array
            self._version[0] = version

    def read(self, newer_than: int) -> tuple[int, Weights] | None:
        """Return the version and a copy of the weights, or None if the version is not above `newer_than`.

        Args:
            newer_than: A version; -1 for any complete weights.

        Raises:
            SamplerTimeoutError: See write().
        """
        with self._locked(fcntl.LOCK_SH):
            if self._version[0] <= newer_than:
                return None
            flat = np.frombuffer(self._memory, np.uint8).copy()
        version, arrays = _cut(self.form, Arrays(flat))
        return int(version[0]), arrays

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        end = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.lockf(self.fd, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    problem = f"has locked the weights for {LOCK_TIMEOUT_S:g} s; check whether it is suspended"
                    raise SamplerTimeoutError(None, problem) from None
                time.sleep(LOOKS_EVERY_S)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)


def new_weights_file(form: Form) -> int:
    """Return the descriptor of new memory for weights of this form.

    The memory has no name; the system frees it with the last process that has it open.
    """
    arrays = Arrays(None)
    _cut(form, arrays)
    fd = os.memfd_create("fastmarl-weights")
    os.ftruncate(fd, arrays.size)
    return fd


def _cut(form: Form, arrays: Arrays) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Return the version, int64 [1], and the weights as views of the memory."""
    version = arrays.cut((1,), np.int64)
    return version, {
        module_id: {name: arrays.cut(shape, dtype) for name, (shape, dtype) in of_module.items()}
        for module_id, of_module in form.items()
    }

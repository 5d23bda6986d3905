"""The newest weights, in memory that the learner shares with the processes that sample."""

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
BEING_WRITTEN = -1  # instead of a version
LOCK_TIMEOUT_S = 30.0  # locks are held while weights are copied: for milliseconds, unless somebody stops the process
LOOKS_EVERY_S = 1e-4


def form_of(weights: Weights) -> Form:
    """Shapes and dtypes of all weights.

    Raises:
        ConfigError: something in them is no array of numbers, such as a layer's extra state.
    """
    form: Form = {}
    for module_id, arrays in weights.items():
        form[module_id] = {}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in NUMBERS:
                raise ConfigError(f"weights are shared as arrays of numbers, but {name!r} of module {module_id!r} is "
                                  f"{type(array).__name__}")  # fmt: skip
            form[module_id][name] = array.shape, array.dtype
    return form


class SharedWeights:
    """Weights of all modules as one flat array, and their version.

    Who writes or copies it holds a lock of the system on its file. So nobody ever gets weights that are partly older
    and partly newer, and a process that is killed leaves no lock behind.

    Args:
        form: of the weights.
        fd: of a file of `new_weights_file(form)`, which is closed with this object.
    """

    def __init__(self, form: Form, fd: int):
        self.form = form
        self.fd = fd
        # The memory stays while it is mapped. Runs by itself only if this was never closed.
        self.close = weakref.finalize(self, os.close, fd)
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self._version, self._arrays = _cut(form, Arrays(self._memory))

    def check(self, weights: Weights) -> None:
        """Raises ConfigError if `write()` can't take them."""
        for module_id, form in form_of(weights).items():
            own = self.form.get(module_id)
            if form != own:
                problem = "there is no such module" if own is None else "they are those of another net"
                raise ConfigError(f"weights of module {module_id!r}: {problem}; modules here are {list(self.form)}")

    def write(self, weights: Weights, version: int) -> None:
        """Have these from now on; modules that are not among them keep theirs.

        Raises:
            SamplerTimeoutError: another process has held the lock for too long.
        """
        with self._locked(fcntl.LOCK_EX):
            self._version[0] = BEING_WRITTEN
            for module_id, arrays in weights.items():
                for name, array in arrays.items():
                    self._arrays[module_id][name][...] = array
            self._version[0] = version

    def read(self, newer_than: int) -> tuple[int, Weights] | None:
        """(version, a copy of the weights), or None if the version is not above `newer_than`, which is -1 or more.

        Raises:
            SamplerTimeoutError: see write().
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
                    problem = f"has locked the weights for {LOCK_TIMEOUT_S:g} s; was it stopped?"
                    raise SamplerTimeoutError(None, problem) from None
                time.sleep(LOOKS_EVERY_S)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)


def new_weights_file(form: Form) -> int:
    """File descriptor of fresh memory for weights of this form; it has no name, and ends with the last process that has
    it."""
    arrays = Arrays(None)
    _cut(form, arrays)
    fd = os.memfd_create("fastmarl-weights")
    os.ftruncate(fd, arrays.size)
    return fd


def _cut(form: Form, arrays: Arrays) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """(the version, int64 [1]; the weights)"""
    version = arrays.cut((1,), np.int64)
    return version, {
        module_id: {name: arrays.cut(shape, dtype) for name, (shape, dtype) in of_module.items()}
        for module_id, of_module in form.items()
    }

"""The memory in which a learner shares its weights: never torn, and never locked for ever."""

import fcntl
import multiprocessing
import time

import numpy as np
import pytest

from fastmarl.distributed import shared_weights
from fastmarl.distributed.shared_weights import SharedWeights, form_of, new_weights_file
from fastmarl.errors import ConfigError, SamplerTimeoutError


def hold_lock(fd, pipe):
    fcntl.lockf(fd, fcntl.LOCK_SH)
    pipe.send(True)
    time.sleep(600)


def test_a_lock_on_the_weights_that_is_held_for_ever_is_a_timeout(monkeypatch):
    monkeypatch.setattr(shared_weights, "LOCK_TIMEOUT_S", 0.2)
    arrays = {"p": {"w": np.zeros(3, np.float32)}}
    form = form_of(arrays)
    shared = SharedWeights(form, new_weights_file(form))
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold_lock, args=(shared.fd, there))
    process.start()
    here.recv()
    with pytest.raises(SamplerTimeoutError, match=r"has locked the weights for 0.2 s"):
        shared.write(arrays, 1)
    assert shared.read(-1) is not None  # others may read
    process.kill()  # while it holds the lock
    process.join()
    shared.write(arrays, 1)
    assert shared.read(0)[0] == 1 and shared.read(1) is None
    shared.close()
    for end in (here, there):
        end.close()
    process.close()


def read_for(shared, seconds, pipe):
    """Each version's numbers are all equal to it."""
    version, n, torn = -1, 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        newest = shared.read(version)
        if newest is not None:
            version, arrays = newest
            n += 1
            torn += any((array != version % 120).any() for array in arrays["p"].values())
    pipe.send((n, torn))


@pytest.mark.slow
def test_weights_are_never_torn():
    arrays = {"p": {"w": np.zeros(200_000, np.float32), "b": np.zeros((), np.int64), "c": np.zeros((3, 5), np.int8)}}
    form = form_of(arrays)
    shared = SharedWeights(form, new_weights_file(form))
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=read_for, args=(shared, 3.0, there)) for _ in range(2)]
    for reader in readers:
        reader.start()
    version = 0
    while any(reader.is_alive() for reader in readers):
        version += 1
        for array in arrays["p"].values():
            array[...] = version % 120
        shared.write(arrays, version)
    for n, torn in (here.recv(), here.recv()):
        assert n > 20 and not torn
    for reader in readers:
        reader.join()
        reader.close()
    shared.close()
    for end in (here, there):
        end.close()


def test_weights_that_are_no_arrays_are_refused():
    with pytest.raises(ConfigError, match="got dict for '_extra_state' of module 'p'"):
        form_of({"p": {"_extra_state": {}}})

"""Counts how often NumPy asks for the memory of an array, by NumPy's own interface for allocators (NEP 49)."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

SET_HANDLER = 304  # place of PyDataMem_SetHandler in NumPy's C API
NAME = ctypes.create_string_buffer(b"mem_handler")
Malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
Calloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class Handler(ctypes.Structure):
    """NumPy's C struct PyDataMem_Handler."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


class Counter:
    """How many arrays' memory was asked for."""

    n = 0


def _api(name, result, *arguments):
    function = getattr(ctypes.pythonapi, name)
    function.restype, function.argtypes = result, arguments
    return function


new_capsule = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
pointer_in = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)


@contextmanager
def counted_array_memory() -> Iterator[Counter]:
    """Within it, every allocation of an array's memory in this thread adds one to the counter."""
    table = pointer_in(np._core._multiarray_umath._ARRAY_API, None)
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[SET_HANDLER]
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)
    counter = Counter()

    def malloc(context, size):
        counter.n += 1
        return true_malloc(context, size)

    def calloc(context, n, size):
        counter.n += 1
        return true_calloc(context, n, size)

    # Arrays made here may outlive all Python objects: what frees them is NumPy's own function, found through memory
    # that is never given back.
    libc_malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("malloc", ctypes.CDLL(None)))
    ours = Handler.from_address(libc_malloc(ctypes.sizeof(Handler)))
    callbacks = Malloc(malloc), Calloc(calloc)
    former = set_handler(new_capsule(ctypes.addressof(ours), ctypes.addressof(NAME), None))
    try:
        theirs = Handler.from_address(pointer_in(former, ctypes.addressof(NAME)))
        ctypes.memmove(ctypes.addressof(ours), ctypes.addressof(theirs), ctypes.sizeof(Handler))
        true_malloc, true_calloc = Malloc(theirs.malloc), Calloc(theirs.calloc)
        ours.malloc, ours.calloc = (ctypes.cast(callback, ctypes.c_void_p).value for callback in callbacks)
        yield counter
    finally:
        ours.malloc, ours.calloc = theirs.malloc, theirs.calloc
        set_handler(former)

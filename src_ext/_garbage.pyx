"""Switching Python's garbage collector off during a call. Compiled, so that no interrupt comes between switching it off
and on again."""

cdef extern from "Python.h":
    int PyGC_Disable() noexcept
    int PyGC_Enable() noexcept


def without_collection(function, *arguments):
    """Call a function that makes thousands of objects, all of which are needed and would trigger collections in
    vain."""
    cdef int was_enabled = PyGC_Disable()
    try:
        return function(*arguments)
    finally:
        if was_enabled:
            PyGC_Enable()

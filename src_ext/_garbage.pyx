"""Python's garbage collector, kept from looking where nothing is to be found. Compiled, so that no interrupt comes
between switching it off and on again."""

cdef extern from "Python.h":
    int PyGC_Disable() noexcept
    int PyGC_Enable() noexcept


def without_collection(function, *arguments):
    """Call it; for making thousands of objects at once, all of which are needed: they would set it off again and again.
    """
    cdef int was_enabled = PyGC_Disable()
    try:
        return function(*arguments)
    finally:
        if was_enabled:
            PyGC_Enable()

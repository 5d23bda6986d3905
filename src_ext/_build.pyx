"""Tells how the extensions were built."""

cdef extern from *:
    int FASTMARL_CHECKED  # set by setup.py, on the compiler's command line

CHECKED = bool(FASTMARL_CHECKED)

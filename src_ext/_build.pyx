"""Build options of the extensions."""

cdef extern from *:
    int FASTMARL_CHECKED  # set by setup.py, on the compiler's command line
    int FASTMARL_SANITIZE

CHECKED = bool(FASTMARL_CHECKED)
SANITIZED = bool(FASTMARL_SANITIZE)

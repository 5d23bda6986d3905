"""Exclusive calls. Compiled, so that no interrupt comes between a call and its registration."""
from cpython.pythread cimport PyThread_get_thread_ident

from fastmarl.core.errors import RunnerBusyError
from fastmarl.core.errors.exits import as_error


cdef class CallGuard:
    """Lets one call at a time work with a runner.

    Attributes:
        running: name of the call under way; None if there is none.
    """
    cdef readonly str running
    cdef unsigned long thread

    def run(self, str name, function, dict arguments):
        """Register a call under `name`, run the function with these arguments, and return its result.

        Raises:
            RunnerBusyError: another call is under way. Errors of the function propagate; SystemExit as a UserExitError.
        """
        self.check(name)
        self.running, self.thread = name, PyThread_get_thread_ident()
        try:
            return function(**arguments)
        except SystemExit as raised:
            raise as_error(raised) from raised
        finally:
            self.running = None

    def check(self, str name, *, bint or_within=False):
        """Raise RunnerBusyError if a call is under way; with `or_within` only if it is in another thread."""
        cdef bint is_own
        if self.running is None:
            return
        is_own = self.thread == PyThread_get_thread_ident()
        if not (is_own and or_within):
            raise RunnerBusyError(name, self.running, is_own)

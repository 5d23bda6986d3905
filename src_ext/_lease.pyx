"""Leases of reusable memory. Compiled, so that memory returns without running Python: like all errors in finalizers, an
interrupt there would be printed and lost."""
cimport cython


@cython.final
@cython.no_gc
cdef class Lease:
    """Represents one borrower of a memory: the borrower and every array made of the memory hold it.

    When the last of them is freed, in any thread, the memory joins the idle ones.

    Args:
        memory: memory that is lent.
        idle: `collections.deque` that takes it back. Neither it nor the memory may refer to the lease.
    """
    cdef object __weakref__
    cdef object _memory, _idle

    def __init__(self, memory, idle):
        self._memory, self._idle = memory, idle

    def __dealloc__(self):
        if self._idle is not None:
            self._idle.append(self._memory)

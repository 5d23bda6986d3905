"""Threads that compute the blocks of a job together; block_threads.h describes how."""
cimport cython
from libc.stdlib cimport calloc, free

from block_threads cimport block_threads, block_threads_begin, block_threads_end, block_threads_serve


@cython.no_gc
cdef class BlockThreads:
    """Gives jobs of compiled code to threads. When this object is gone, they end.

    Args:
        n: number of threads, with the caller's own.

    Attributes:
        jobs: what the other threads serve.
    """

    def __cinit__(self, int n):
        self.n, self.jobs = n, Jobs(n)
        self.shared = self.jobs.shared

    def __dealloc__(self):
        if self.jobs is not None:
            block_threads_end(self.shared)

    def end(self):
        """Let all threads leave `Jobs.serve()`."""
        block_threads_end(self.shared)


cdef class Jobs:
    """The jobs that threads share; this lives as long as any of them."""

    def __cinit__(self, int n):
        self._n = n
        self.shared = <block_threads*>calloc(1, sizeof(block_threads))
        if self.shared == NULL or block_threads_begin(self.shared):
            raise MemoryError

    def __dealloc__(self):
        free(self.shared)  # not destroyed: in a forked process, that would wait for threads that are not there

    def serve(self, int thread):
        """Compute blocks as the thread of this number, from 1 on, until they end."""
        if not 1 <= thread < self._n:
            raise ValueError(f"expected a number from 1 to {self._n - 1}, got {thread}")
        with nogil:
            block_threads_serve(self.shared, thread)

from block_threads cimport block_threads


cdef class BlockThreads:
    cdef block_threads *shared
    cdef readonly int n
    cdef readonly Jobs jobs


cdef class Jobs:
    cdef block_threads *shared
    cdef int _n

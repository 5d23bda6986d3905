from block_threads cimport block_threads


cdef class BlockThreads:
    cdef block_threads *shared
    cdef readonly int n
    cdef readonly Helper helper


cdef class Helper:
    cdef block_threads *shared
    cdef int _n

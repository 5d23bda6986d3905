cdef extern from "block_threads.h" nogil:
    ctypedef struct block_threads:
        pass
    ctypedef void (*block_fn)(const void *context, int thread, Py_ssize_t block) noexcept nogil
    int block_threads_begin(block_threads *shared)
    void block_threads_serve(block_threads *shared, int thread)
    void block_threads_run(block_threads *shared, block_fn compute, const void *context, Py_ssize_t n_blocks)
    void block_threads_end(block_threads *shared)

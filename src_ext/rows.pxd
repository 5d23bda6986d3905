# Header only: row sizes of C-contiguous arrays [n, ...].
cimport numpy as cnp


cdef inline size_t row_bytes(cnp.ndarray array) noexcept:
    """Return the bytes of one row. Strides don't give them: in an array without elements they are arbitrary."""
    cdef size_t n_bytes = cnp.PyArray_ITEMSIZE(array)
    cdef int axis
    for axis in range(1, cnp.PyArray_NDIM(array)):
        n_bytes *= cnp.PyArray_DIM(array, axis)
    return n_bytes

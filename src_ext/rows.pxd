# Header only: sizes of the rows of C-contiguous arrays [n, ...].
cimport numpy as cnp


cdef inline size_t row_bytes(cnp.ndarray array) noexcept:
    """Bytes of one row. The stride between rows is no such size: of an array without elements it can be anything."""
    cdef size_t n_bytes = cnp.PyArray_ITEMSIZE(array)
    cdef int axis
    for axis in range(1, cnp.PyArray_NDIM(array)):
        n_bytes *= cnp.PyArray_DIM(array, axis)
    return n_bytes

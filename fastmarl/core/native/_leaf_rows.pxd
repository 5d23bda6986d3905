cimport numpy as cnp


cdef class LeafRows:
    cdef readonly cnp.ndarray array
    cdef unsigned char[:, ::1] bytes_       # the same memory as [row, byte]; unset for dtype object
    cdef tuple path
    cdef tuple sizes
    cdef bint any_form
    cdef bint is_object
    cdef bint rounds                        # True if float64 arrays are rounded
    cdef int type_num
    cdef int ndim
    cdef size_t row_bytes
    cdef int write(self, Py_ssize_t row, object value) except -1
    cdef bint copies(self, Py_ssize_t row, object value) except -1
    cdef bint _has_shape(self, cnp.ndarray value) noexcept
    cdef object _follow(self, object value)
    cdef int _convert(self, Py_ssize_t row, object value) except -1
    cdef int copy_row(self, Py_ssize_t row, LeafRows source, Py_ssize_t source_row) except -1

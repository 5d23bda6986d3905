"""Whether numbers are such as can be acted upon."""
cimport numpy as cnp
import numpy as np

cnp.import_array()

ctypedef fused real:
    float
    double


def first_unfit(cnp.ndarray values, double least, double most):
    """The first row of `values` [n, ...] with a number that is not in least .. most; -1 if there is none.

    NaN is in no range. Numbers that are no floats are fit.
    """
    cdef int kind = cnp.PyArray_TYPE(values)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(values)
    if n == 0 or not cnp.PyTypeNum_ISFLOAT(kind):
        return -1
    if not cnp.PyArray_ISCARRAY_RO(values) or kind not in (cnp.NPY_FLOAT32, cnp.NPY_FLOAT64):
        values = np.ascontiguousarray(values, np.float64)
        kind = cnp.NPY_FLOAT64
    cdef Py_ssize_t at
    if kind == cnp.NPY_FLOAT32:
        at = _first_unfit[float](<const float*>cnp.PyArray_DATA(values), n, <float>least, <float>most)
    else:
        at = _first_unfit[double](<const double*>cnp.PyArray_DATA(values), n, least, most)
    return -1 if at < 0 else at // (n // cnp.PyArray_DIM(values, 0))


cdef Py_ssize_t _first_unfit(const real *values, Py_ssize_t n, real least, real most) noexcept nogil:
    cdef Py_ssize_t i
    cdef int n_unfit = 0
    for i in range(n):          # without a branch, so that it is vectorised
        n_unfit += not (values[i] >= least and values[i] <= most)
    if n_unfit:
        for i in range(n):
            if not (values[i] >= least and values[i] <= most):
                return i
    return -1

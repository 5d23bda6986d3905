"""Checks that numbers are finite and within range."""
cimport numpy as cnp
import numpy as np

from fastmarl.core.spaces.columns import Columns

cnp.import_array()

ctypedef fused real:
    float
    double


cdef double LEAST = np.finfo(np.float32).min, MOST = np.finfo(np.float32).max
cdef str LOGITS = Columns.ACTION_DIST_INPUTS, LOGP = Columns.ACTION_LOGP, ACTIONS = Columns.ACTIONS


def all_finite(dict outputs):
    """Return True if a module's logits, log-probabilities and actions are finite, and within the range of float32.

    Args:
        outputs: arrays by name; leaves of nested outputs by (name, *path).
    """
    for key, values in outputs.items():
        name = key[0] if type(key) is tuple else key
        if (name == LOGITS or name == LOGP or name == ACTIONS) and first_unfit(values, LEAST, MOST) >= 0:
            return False
    return True


cpdef Py_ssize_t first_unfit(cnp.ndarray values, double least, double most) except -2:
    """Return the first row of `values` [n, ...] with a number outside of least .. most; -1 if there is none.

    NaN is outside of any range. Arrays that are not of floats are always fit.
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


def first_outside(cnp.ndarray values, cnp.ndarray least_K, cnp.ndarray most_K):
    """Return the first row of integers `values` [n, ...] with one that is out of its range; -1 if there is none.

    Args:
        values: integers.
        least_K, most_K: int64, C-contiguous: ranges of a row's numbers, in C order.
    """
    if not cnp.PyArray_ISCARRAY_RO(values) or cnp.PyArray_TYPE(values) != cnp.NPY_INT64:
        values = np.ascontiguousarray(values, np.int64)
    cdef Py_ssize_t n_numbers = cnp.PyArray_SIZE(least_K)
    if cnp.PyArray_SIZE(most_K) != n_numbers or cnp.PyArray_SIZE(values) != cnp.PyArray_DIM(values, 0) * n_numbers:
        raise ValueError(f"expected {n_numbers} numbers a row, as many as ranges, got shape {(<object>values).shape}")
    return _first_outside(<const cnp.int64_t *>cnp.PyArray_DATA(values), cnp.PyArray_DIM(values, 0), n_numbers,
                          <const cnp.int64_t *>cnp.PyArray_DATA(least_K), <const cnp.int64_t *>cnp.PyArray_DATA(most_K))


cdef Py_ssize_t _first_outside(
    const cnp.int64_t *values, Py_ssize_t n, Py_ssize_t n_numbers, const cnp.int64_t *least, const cnp.int64_t *most
) noexcept nogil:
    cdef Py_ssize_t i, k
    cdef cnp.int64_t low, high
    cdef cnp.int64_t n_outside = 0
    if n_numbers == 1:
        low, high = least[0], most[0]
        for i in range(n):      # no branch, so that it is vectorised
            n_outside += (values[i] < low) | (values[i] > high)
    else:
        for i in range(n):
            for k in range(n_numbers):
                n_outside += (values[i * n_numbers + k] < least[k]) | (values[i * n_numbers + k] > most[k])
    if n_outside:
        for i in range(n):
            for k in range(n_numbers):
                if values[i * n_numbers + k] < least[k] or values[i * n_numbers + k] > most[k]:
                    return i
    return -1


cdef Py_ssize_t _first_unfit(const real *values, Py_ssize_t n, real least, real most) noexcept nogil:
    cdef Py_ssize_t i
    cdef int n_unfit = 0
    for i in range(n):          # no branch, so that it is vectorised
        n_unfit += not (values[i] >= least and values[i] <= most)
    if n_unfit:
        for i in range(n):
            if not (values[i] >= least and values[i] <= most):
                return i
    return -1

"""Action masks: reading the legal choices of a batch's rows, and masking logits."""
cimport numpy as cnp
import numpy as np

cnp.import_array()

cdef float LEAST = np.finfo(np.float32).min


def rule_out(cnp.ndarray logits not None, cnp.ndarray mask not None, Py_ssize_t first=0):
    """Give the lowest finite number to logits whose mask is 0.

    Args:
        logits: float32 [n, k], C-contiguous, written in place.
        mask: [n, ...] of any numeric dtype, for the columns from `first` on.
        first: first column of the mask.

    Raises:
        ValueError: shapes or dtypes don't fit.
    """
    cdef cnp.ndarray flags = _flags(mask)
    cdef Py_ssize_t n = cnp.PyArray_DIM(logits, 0), k = cnp.PyArray_DIM(logits, 1)
    cdef Py_ssize_t width = cnp.PyArray_SIZE(flags) // max(1, n)
    if (cnp.PyArray_TYPE(logits) != cnp.NPY_FLOAT32 or not cnp.PyArray_ISCARRAY(logits) or first < 0
            or first + width > k or width * n != cnp.PyArray_SIZE(flags)):
        raise ValueError(f"expected float32 logits [n, k] and no more numbers in a mask, got {(<object>logits).shape} "
                         f"and {(<object>mask).shape}")
    cdef float *values = <float*>cnp.PyArray_DATA(logits) + first
    cdef const char *is_legal = <char*>cnp.PyArray_DATA(flags)
    cdef Py_ssize_t j
    for _ in range(n):
        for j in range(width):
            values[j] = values[j] if is_legal[j] else LEAST
        values += k
        is_legal += width


def read_legal(cnp.ndarray mask not None, const Py_ssize_t[::1] sizes, cnp.ndarray legal not None):
    """Convert a mask [n, ...] to bool [n, k]; return the first row without a choice in one of its parts, or -1.

    Args:
        mask: of any numeric dtype.
        sizes: sizes of a row's parts, k in all.
        legal: bool [n, k], C-contiguous. OUT

    Raises:
        ValueError: shapes or dtypes don't fit.
    """
    cdef cnp.ndarray flags = _flags(mask)
    cdef Py_ssize_t n = cnp.PyArray_DIM(legal, 0), k = 0, row, part, j, unfit = -1
    for part in range(sizes.shape[0]):
        k += sizes[part]
    if (cnp.PyArray_TYPE(legal) != cnp.NPY_BOOL or not cnp.PyArray_ISCARRAY(legal)
            or cnp.PyArray_SIZE(legal) != n * k or cnp.PyArray_SIZE(flags) != n * k):
        raise ValueError(f"expected masks [n, {k}], got {(<object>mask).shape} for {(<object>legal).shape}")
    cdef const char *given = <char*>cnp.PyArray_DATA(flags)
    cdef char *is_legal = <char*>cnp.PyArray_DATA(legal)
    cdef char some
    for row in range(n):
        for part in range(sizes.shape[0]):
            some = 0
            for j in range(sizes[part]):
                is_legal[j] = given[j] != 0
                some |= is_legal[j]
            if not some and unfit < 0:
                unfit = row
            given += sizes[part]
            is_legal += sizes[part]
    return unfit


cdef cnp.ndarray _flags(cnp.ndarray mask):
    """Return a mask as C-contiguous bytes, which are 0 where the mask is."""
    if cnp.PyArray_ITEMSIZE(mask) != 1 or not cnp.PyArray_IS_C_CONTIGUOUS(mask):
        return np.not_equal(mask, 0, order="C")
    return mask

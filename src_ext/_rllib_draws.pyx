"""Choices drawn from logits in one call, for the few rows of a step: NumPy's calls would take longer than the draws.

The same as `fastmarl.kernels.sample.sample_choices` with the numbers that `Generator.random()` gives.
"""
cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport INFINITY, NAN, exp, isfinite, log

cnp.import_array()

cdef extern from "numpy/random/bitgen.h":
    ctypedef struct bitgen_t:
        void *state
        double (*next_double)(void *state) noexcept


cdef class ChoiceDraws:
    """Draws from categorical distributions.

    Args:
        rng: a Generator that no other thread uses: one number is taken for each choice.
        nvec: number of choices of each part of an action, whose logits stand in a row; None: actions have no parts,
            and as many choices as there are logits.
    """
    cdef object _rng
    cdef bitgen_t *_numbers
    cdef list _nvec
    cdef Py_ssize_t _k                      # logits a row, if actions have parts

    def __init__(self, rng, nvec):
        bits = rng.bit_generator
        self._rng = bits
        self._numbers = <bitgen_t*>PyCapsule_GetPointer(bits.capsule, "BitGenerator")
        self._nvec = None if nvec is None else list(nvec)
        self._k = 0 if nvec is None else sum(nvec)

    def draw(self, cnp.ndarray logits not None):
        """(actions int32 [n] or [n, parts], their log-probabilities float32 [n]) for float32 [n, k], C-contiguous.

        Of a row with a part that has NaN or +inf, the log-probability is NaN.

        Raises:
            ValueError: these are no such logits.
        """
        if cnp.PyArray_TYPE(logits) != cnp.NPY_FLOAT32 or not cnp.PyArray_ISCARRAY_RO(logits) \
                or cnp.PyArray_NDIM(logits) != 2:
            raise ValueError(f"expected float32 [n, k], C-contiguous, got {logits.dtype} {(<object>logits).shape}")
        cdef cnp.npy_intp[2] shape
        cdef Py_ssize_t n = cnp.PyArray_DIM(logits, 0), k = cnp.PyArray_DIM(logits, 1), i, part, size
        cdef bint has_parts = self._nvec is not None
        cdef Py_ssize_t n_parts = len(self._nvec) if has_parts else 1
        if has_parts and k != self._k:
            raise ValueError(f"expected {self._k} logits a row, got {k}")
        shape[0], shape[1] = n, n_parts
        cdef cnp.ndarray actions = cnp.PyArray_EMPTY(1 + has_parts, shape, cnp.NPY_INT32, 0)
        cdef cnp.ndarray logp = cnp.PyArray_EMPTY(1, shape, cnp.NPY_FLOAT32, 0)
        cdef const float *values = <float*>cnp.PyArray_DATA(logits)
        cdef int *action = <int*>cnp.PyArray_DATA(actions)
        cdef float *log_p = <float*>cnp.PyArray_DATA(logp)
        cdef double of_row
        for i in range(n):
            of_row = 0.0
            for part in range(n_parts):
                size = self._nvec[part] if has_parts else k
                of_row += self._draw(values, size, action)
                values += size
                action += 1
            log_p[i] = <float>of_row
        return actions, logp

    cdef double _draw(
        self,
        const float *logits,    # IN  [k]
        Py_ssize_t k,
        int *action,            # OUT 0 if there is NaN or +inf
    ) noexcept:
        """The action's log-probability. Inverts the cumulative distribution, in float64."""
        cdef double highest = -INFINITY, total = 0.0, reached = 0.0, weight
        cdef double uniform = self._numbers.next_double(self._numbers.state)
        cdef Py_ssize_t j
        for j in range(k):
            highest = max(highest, <double>logits[j])
        for j in range(k):
            total += exp(logits[j] - highest)
        action[0] = 0
        if not isfinite(total):
            return NAN
        for j in range(k):
            weight = exp(logits[j] - highest)
            if weight > 0.0:
                action[0] = <int>j              # the last one possible, should rounding leave the number unreached
            reached += weight
            if reached > uniform * total:
                break
        return logits[action[0]] - highest - log(total)

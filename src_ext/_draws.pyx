"""Choices drawn from logits in one call, for the few rows of a step: NumPy's calls would take longer than the draws.

The same as `fastmarl.kernels.sample.sample_choices` with the numbers that `Generator.random()` gives.
"""
cimport numpy as cnp
import numpy as np
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport INFINITY, NAN, exp, isfinite, log

cnp.import_array()

cdef extern from "numpy/random/bitgen.h":
    ctypedef struct bitgen_t:
        void *state
        double (*next_double)(void *state) noexcept


ctypedef fused integer:
    int
    cnp.int64_t


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
        shape[0], shape[1] = cnp.PyArray_DIM(logits, 0), 1 if self._nvec is None else len(self._nvec)
        cdef cnp.ndarray actions = cnp.PyArray_EMPTY(1 if self._nvec is None else 2, shape, cnp.NPY_INT32, 0)
        cdef cnp.ndarray logp = cnp.PyArray_EMPTY(1, shape, cnp.NPY_FLOAT32, 0)
        self._draw_rows(logits, <int*>cnp.PyArray_DATA(actions), <float*>cnp.PyArray_DATA(logp))
        return actions, logp

    def draw_into(
        self,
        cnp.ndarray logits not None,    # IN  [n, k], of any kind of number
        cnp.ndarray actions not None,   # OUT int64, of n actions
        cnp.ndarray logp not None,      # OUT float32 [n]
    ):
        """The same, in memory of the caller's. Raises ValueError if it does not fit the logits."""
        cdef Py_ssize_t n = len(logits), n_parts = 1 if self._nvec is None else len(self._nvec)
        if cnp.PyArray_TYPE(actions) != cnp.NPY_INT64 or not cnp.PyArray_ISCARRAY(actions) \
                or cnp.PyArray_SIZE(actions) != n * n_parts or cnp.PyArray_TYPE(logp) != cnp.NPY_FLOAT32 \
                or not cnp.PyArray_ISCARRAY(logp) or cnp.PyArray_SIZE(logp) != n:
            raise ValueError(f"expected room for {n} actions of {n_parts} int64, and float32 log-probabilities, got "
                             f"{actions.dtype} {(<object>actions).shape} and {logp.dtype} {(<object>logp).shape}")
        if cnp.PyArray_NDIM(logits) != 2:
            raise ValueError(f"expected logits [n, k], got {(<object>logits).shape}")
        if cnp.PyArray_TYPE(logits) != cnp.NPY_FLOAT32 or not cnp.PyArray_ISCARRAY_RO(logits):
            logits = np.ascontiguousarray(logits, np.float32)
        self._draw_rows(logits, <cnp.int64_t*>cnp.PyArray_DATA(actions), <float*>cnp.PyArray_DATA(logp))

    cdef int _draw_rows(self, cnp.ndarray logits, integer *action, float *log_p) except -1:
        cdef const float *values = <float*>cnp.PyArray_DATA(logits)
        cdef Py_ssize_t n = cnp.PyArray_DIM(logits, 0), k = cnp.PyArray_DIM(logits, 1), i
        cdef Py_ssize_t size
        cdef double of_row
        if self._nvec is not None and k != self._k:
            raise ValueError(f"expected {self._k} logits a row, got {k}")
        for i in range(n):
            if self._nvec is None:
                log_p[i] = <float>self._draw(values + i * k, k, action + i)
                continue
            of_row = 0.0
            for size in self._nvec:
                of_row += self._draw(values, size, action)
                values += size
                action += 1
            log_p[i] = <float>of_row
        return 0

    cdef double _draw(
        self,
        const float *logits,    # IN  [k]
        Py_ssize_t k,
        integer *action,        # OUT 0 if there is NaN or +inf
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
                action[0] = <integer>j              # the last one possible, should rounding leave the number unreached
            reached += weight
            if reached > uniform * total:
                break
        return logits[action[0]] - highest - log(total)

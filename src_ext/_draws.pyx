"""Actions from logits in one call, for the few rows of a step, where calls of torch or NumPy would take longer.

Standalone runner and drop-in both draw here, from the random numbers of a NumPy Generator.
"""
cimport numpy as cnp
import math
import numpy as np
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport NAN, expf, isnan

from fastmarl.core.native._dense import BEST, VARIANTS

cnp.import_array()

cdef extern from "numpy/random/bitgen.h":
    ctypedef struct bitgen_t:
        void *state
        double (*next_double)(void *state) noexcept

cdef extern from "draws.h":
    enum:
        LANES
    void draw_choices(
        int variant,
        const float *logits,
        Py_ssize_t n,
        Py_ssize_t k,
        Py_ssize_t stride,
        const double *uniform,
        float *weights,
        long long *choice,
        float *logp,
    ) noexcept


ctypedef fused integer:
    int
    cnp.int64_t

cdef double HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


cdef class ActionDraws:
    """Draws actions, or takes the likeliest. The next call overwrites the arrays that it returns.

    Args:
        shape: shape of an action; None: one axis.
        dtype: dtype of actions.
        n_logits: see the attribute.

    Attributes:
        n_logits: number of logits per action; None: any number.
    """
    cdef readonly object n_logits
    cdef object _shape, _dtype
    cdef Py_ssize_t _width                              # n_logits; -1: any number
    cdef cnp.ndarray _action_memory, _logp_memory       # reused if large enough
    cdef cnp.ndarray _actions, _logp
    cdef Py_ssize_t _n, _k                              # number of rows, and of values per row, in the arrays

    def __init__(self, shape, dtype, n_logits):
        self._shape, self._dtype, self.n_logits = shape, dtype, n_logits
        self._action_memory, self._logp_memory = np.empty(0, dtype), np.empty(0, np.float32)
        self._n, self._width = -1, -1 if n_logits is None else n_logits

    def sample(self, logits not None):
        """Draw actions for logits [n, k] of any numeric dtype.

        The log-probability is NaN if an action is, or if a choice has NaN or +inf among its logits.

        Returns:
            (actions [n, *shape], their log-probabilities float32 [n]).

        Raises:
            ValueError: the number of logits does not fit the action, or is 0.
        """
        self._act(self._checked(logits), True)
        return self._actions, self._logp

    def likeliest(self, logits not None):
        """Return the most likely actions [n, *shape], the first of equals. Raises ValueError as `sample()` does."""
        self._act(self._checked(logits), False)
        return self._actions

    cdef int _act(self, cnp.ndarray logits, bint draws) except -1:
        """Write the actions for float32 [n, k], C-contiguous, and the log-probabilities of drawn ones."""
        raise NotImplementedError

    cdef cnp.ndarray _checked(self, cnp.ndarray logits):
        """Convert logits to float32, C-contiguous."""
        if cnp.PyArray_NDIM(logits) != 2 or 0 <= self._width != cnp.PyArray_DIM(logits, 1):
            raise ValueError(f"expected logits [n, {self.n_logits or 'k'}], got {(<object>logits).shape}")
        if cnp.PyArray_TYPE(logits) != cnp.NPY_FLOAT32 or not cnp.PyArray_ISCARRAY_RO(logits):
            return np.ascontiguousarray(logits, np.float32)
        return logits

    cdef int _make_room(self, Py_ssize_t n, Py_ssize_t k) except -1:
        """Make room for n actions of k numbers."""
        if n == self._n and k == self._k:
            return 0
        self._n = -1        # until all has been set
        if n * k > cnp.PyArray_SIZE(self._action_memory) or n > cnp.PyArray_SIZE(self._logp_memory):
            self._action_memory, self._logp_memory = np.empty(n * k, self._dtype), np.empty(n, np.float32)
        self._actions = self._action_memory[: n * k].reshape((n, k) if self._shape is None else (n, *self._shape))
        self._logp = self._logp_memory[:n]
        self._n, self._k = n, k
        return 0


cdef class ChoiceDraws(ActionDraws):
    """Draws of Discrete and MultiDiscrete: one uniform number of 53 bits for each choice, in order of the rows.

    Weights of choices are float32, with a relative error of about 1e-7, but their sums are float64, so that small
    probabilities keep that accuracy. A choice is never drawn if it is exp(80) times less likely than the likeliest.

    Args:
        rng: a Generator that no other thread uses.
        nvec: number of choices of each part of an action, whose logits stand in a row; None: one part, with one choice
            per logit.
        shape: shape of an action, by default () without `nvec`, else one axis.
        dtype: int64 or int32.
        variant: a key of VARIANTS; None: the best one.
    """
    cdef object _bits
    cdef bitgen_t *_numbers
    cdef cnp.ndarray _nvec
    cdef bint _is_wide
    cdef int _variant
    cdef cnp.ndarray _uniform, _weights

    def __init__(self, rng, nvec=None, shape=None, dtype=np.int64, variant=None):
        ActionDraws.__init__(self, () if nvec is None else shape, dtype, None if nvec is None else sum(nvec))
        self._bits = rng.bit_generator
        self._numbers = <bitgen_t*>PyCapsule_GetPointer(self._bits.capsule, "BitGenerator")
        self._nvec = None if nvec is None else np.array(nvec, np.intp)
        self._is_wide = np.dtype(dtype) == np.int64
        self._variant = VARIANTS[variant or BEST]
        self._uniform = np.zeros((1 if nvec is None else len(nvec), LANES))
        self._weights = np.empty((0 if nvec is None else max(nvec, default=0), LANES), np.float32)

    cdef int _act(self, cnp.ndarray logits, bint draws) except -1:
        cdef Py_ssize_t n = cnp.PyArray_DIM(logits, 0), k = cnp.PyArray_DIM(logits, 1)
        cdef Py_ssize_t n_parts = 1 if self._nvec is None else cnp.PyArray_SIZE(self._nvec)
        cdef const Py_ssize_t *sizes = &k if self._nvec is None else <Py_ssize_t*>cnp.PyArray_DATA(self._nvec)
        if self._nvec is None and k == 0:
            raise ValueError(f"expected logits [n, k] of at least one choice, got {(<object>logits).shape}")
        self._make_room(n, n_parts)
        if self._nvec is None and k > cnp.PyArray_DIM(self._weights, 0):
            self._weights = np.empty((k, LANES), np.float32)
        cdef const float *values = <float*>cnp.PyArray_DATA(logits)
        cdef float *logp = <float*>cnp.PyArray_DATA(self._logp)
        cdef void *actions = cnp.PyArray_DATA(self._actions)
        if draws and self._is_wide:
            self._draw(values, n, k, sizes, n_parts, <cnp.int64_t*>actions, logp)
        elif draws:
            self._draw(values, n, k, sizes, n_parts, <int*>actions, logp)
        elif self._is_wide:
            _take_greatest(values, n, sizes, n_parts, <cnp.int64_t*>actions)
        else:
            _take_greatest(values, n, sizes, n_parts, <int*>actions)
        return 0

    cdef void _draw(
        self,
        const float *logits,        # IN  [n, k]
        Py_ssize_t n,
        Py_ssize_t k,
        const Py_ssize_t *sizes,    # IN  [n_parts]
        Py_ssize_t n_parts,
        integer *action,            # OUT [n, n_parts]
        float *logp,                # OUT [n]
    ) noexcept:
        cdef Py_ssize_t first = 0, rows, r, part
        cdef const float *part_logits
        cdef double *uniform = <double*>cnp.PyArray_DATA(self._uniform)
        cdef float *weights = <float*>cnp.PyArray_DATA(self._weights)
        cdef long long choice[LANES]
        while first < n:
            rows = min(<Py_ssize_t>LANES, n - first)
            for r in range(rows):
                logp[first + r] = 0.0
                for part in range(n_parts):
                    uniform[part * LANES + r] = self._numbers.next_double(self._numbers.state)
            part_logits = logits + first * k
            for part in range(n_parts):
                draw_choices(self._variant, part_logits, rows, sizes[part], k, uniform + part * LANES, weights, choice,
                             logp + first)
                for r in range(rows):
                    action[(first + r) * n_parts + part] = <integer>choice[r]
                part_logits += sizes[part]
            first += rows


cdef void _take_greatest(
    const float *logits,        # IN  [n, sum of sizes]
    Py_ssize_t n,
    const Py_ssize_t *sizes,    # IN  [n_parts]
    Py_ssize_t n_parts,
    integer *action,            # OUT [n, n_parts]
) noexcept:
    cdef Py_ssize_t part
    for _ in range(n):
        for part in range(n_parts):
            action[0] = <integer>_greatest(logits, sizes[part])
            logits += sizes[part]
            action += 1


cdef Py_ssize_t _greatest(const float *logits, Py_ssize_t k) noexcept:
    """Return the index of the first greatest logit; NaN is greater than all."""
    cdef Py_ssize_t j, best = 0
    for j in range(1, k):
        if isnan(logits[best]):
            break
        if not logits[j] <= logits[best]:
            best = j
    return best


cdef class GaussianDraws(ActionDraws):
    """Draws of Box: float32 actions, from one normal number each; logits are means, then log standard deviations.

    Args:
        rng: a Generator.
        shape: shape of an action; None: one axis.
    """
    cdef object _standard_normal

    def __init__(self, rng, shape=None):
        ActionDraws.__init__(self, shape, np.float32, None if shape is None else 2 * math.prod(shape))
        self._standard_normal = rng.standard_normal

    cdef int _act(self, cnp.ndarray logits, bint draws) except -1:
        cdef Py_ssize_t i, j, n = cnp.PyArray_DIM(logits, 0), width = cnp.PyArray_DIM(logits, 1), k = width // 2
        self._make_room(n, k)
        if draws:
            self._standard_normal(None, np.float32, self._actions)
        cdef const float *mean = <float*>cnp.PyArray_DATA(logits)
        cdef float *action = <float*>cnp.PyArray_DATA(self._actions)
        cdef float *logp = <float*>cnp.PyArray_DATA(self._logp)
        cdef float noise, log_std
        cdef double of_row
        for i in range(n):
            of_row = 0.0
            for j in range(k):
                if draws:
                    noise, log_std = action[j], mean[k + j]
                    action[j] = mean[j] + noise * expf(log_std)
                    of_row -= 0.5 * noise * noise + log_std + HALF_LOG_2PI
                    if isnan(action[j]):
                        of_row = NAN
                else:
                    action[j] = mean[j]
            if draws:
                logp[i] = <float>of_row
            mean += width
            action += k
        return 0

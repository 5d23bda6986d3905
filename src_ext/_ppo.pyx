"""PPO's loss without autograd: its derivatives by a policy's distribution inputs and values, row by row; and tanh.

Schulman et al. (2017), "Proximal Policy Optimization Algorithms", as RLlib's PPOTorchLearner has it. What is not finite
in a row makes its derivatives not finite: products are taken even where a factor is 0, as autograd takes them.
"""
from libc.math cimport INFINITY, expf, logf

cdef extern from *:
    """
    #include <stddef.h>
    #include <string.h>

    /* From exp(2x) - 1, which Taylor's series gives on |r| <= ln(2) / 2 (Cody and Waite, "Software manual for the
       elementary functions", 1980); off by 3e-7 of itself at most. So written, NaN stays NaN. */
    static inline float tanh_of(float x) {
        const float y = x > 10.0f ? 20.0f : x < -10.0f ? -20.0f : 2.0f * x;
        const float whole = (y * 1.44269504f + 12582912.0f) - 12582912.0f;
        const float r = (y - whole * 0.693359375f) + whole * 2.12194440e-4f;
        float p = r * 1.98412698e-4f + 1.38888889e-3f;
        p = p * r + 8.33333333e-3f;
        p = p * r + 4.16666667e-2f;
        p = p * r + 1.66666667e-1f;
        p = p * r + 5.00000000e-1f;
        p = p * r * r + r;
        const int exponent = ((int)(whole == whole ? whole : 0.0f) + 127) << 23;
        float power;
        memcpy(&power, &exponent, 4);
        const float e = power * p + (power - 1.0f);
        return e / (e + 2.0f);
    }

    #define TANH(NAME) static void NAME(float *x, size_t n) { for (size_t i = 0; i < n; i++) x[i] = tanh_of(x[i]); }

    TANH(tanh_plain)
    #if defined(__x86_64__) && defined(__GNUC__)
    __attribute__((target("avx2,fma"))) TANH(tanh_wide)
    static int has_wide(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
    #else
    #define tanh_wide tanh_plain
    static int has_wide(void) { return 0; }
    #endif
    """
    void tanh_plain(float *x, size_t n) nogil
    void tanh_wide(float *x, size_t n) nogil
    int has_wide()

cdef bint WIDE = has_wide()
cdef float LOG_ROOT_2_PI = 0.9189385332


def tanh_(float[:, ::1] x):
    """In place."""
    cdef size_t n = x.shape[0] * x.shape[1]
    if n:
        with nogil:
            if WIDE:
                tanh_wide(&x[0, 0], n)
            else:
                tanh_plain(&x[0, 0], n)


cdef class PPOLoss:
    """The derivatives of a minibatch's loss.

    A row of the minibatch is [observation, action, former distribution inputs, former log-probability, advantage, value
    target, whether it counts]. Discrete actions are indices below the number of inputs: the caller has seen to that.

    Args:
        clip_param, vf_clip_param, vf_loss_coeff, entropy_coeff: as in PPO's config; `vf_clip_param` None: no limit.
        kl_coeff: None: no KL term.
        bound: of a Gaussian's logarithms of standard deviations, None: none.
    """

    cdef float least_ratio, most_ratio, most_error, value_coeff, entropy_coeff, kl_coeff, bound
    cdef bint has_kl

    def __init__(self, *, double clip_param, object vf_clip_param, double vf_loss_coeff, double entropy_coeff,
                 object kl_coeff, object bound=None):
        self.least_ratio, self.most_ratio = <float>(1 - clip_param), <float>(1 + clip_param)
        self.most_error = INFINITY if vf_clip_param is None else vf_clip_param
        self.value_coeff, self.entropy_coeff = <float>vf_loss_coeff, <float>entropy_coeff
        self.has_kl = kl_coeff is not None
        self.kl_coeff = kl_coeff if self.has_kl else 0
        self.bound = INFINITY if bound is None else bound

    def categorical(self, const float[:, ::1] rows, Py_ssize_t n_obs, const float[:, ::1] logits,
                    const float[:, ::1] values, float[:, ::1] d_logits, float[:, ::1] d_values):
        """Write the derivatives of a loss with a Categorical policy.

        Args:
            rows: [n, n_obs + 1 + n_logits + 4].
            n_obs: numbers in an observation.
            logits, values: the module's outputs, [n, n_logits] and [n, 1].
            d_logits, d_values: of the same shapes. OUT
        """
        cdef Py_ssize_t i, n_logits = logits.shape[1], at = n_obs + 1 + n_logits
        cdef float weight
        self._check(rows, n_obs + n_logits + 5, logits, values, d_logits, d_values)
        with nogil:
            weight = self._weight(rows, at + 3)
            for i in range(rows.shape[0]):
                self._categorical_row(&rows[i, n_obs], &logits[i, 0], &d_logits[i, 0], n_logits,
                                      weight * rows[i, at + 3])
                d_values[i, 0] = self._value(values[i, 0] - rows[i, at + 2], weight * rows[i, at + 3])

    def gaussian(self, const float[:, ::1] rows, Py_ssize_t n_obs, const float[:, ::1] logits,
                 const float[:, ::1] values, float[:, ::1] d_logits, float[:, ::1] d_values):
        """As `categorical()`, with a DiagGaussian policy.

        Args:
            rows: [n, n_obs + 3 n_dims + 4].
            logits: [n, 2 n_dims]: means, then logarithms of standard deviations before they are bounded.
        """
        cdef Py_ssize_t i, n_dims = logits.shape[1] // 2, at = n_obs + 3 * n_dims
        cdef float weight
        self._check(rows, n_obs + 3 * n_dims + 4, logits, values, d_logits, d_values)
        with nogil:
            weight = self._weight(rows, at + 3)
            for i in range(rows.shape[0]):
                self._gaussian_row(&rows[i, n_obs], &logits[i, 0], &d_logits[i, 0], n_dims, weight * rows[i, at + 3])
                d_values[i, 0] = self._value(values[i, 0] - rows[i, at + 2], weight * rows[i, at + 3])

    cdef int _check(self, const float[:, ::1] rows, Py_ssize_t width, const float[:, ::1] logits,
                    const float[:, ::1] values, float[:, ::1] d_logits, float[:, ::1] d_values) except -1:
        cdef Py_ssize_t n = rows.shape[0]
        if rows.shape[1] != width:
            raise ValueError(f"rows must have {width} columns, got {rows.shape[1]}")
        if logits.shape[0] != n or values.shape[0] != n or d_values.shape[0] != n or d_logits.shape[0] != n:
            raise ValueError(f"all arrays must have {n} rows, as the minibatch")
        if d_logits.shape[1] != logits.shape[1] or values.shape[1] != 1 or d_values.shape[1] != 1:
            raise ValueError("derivatives must have the shapes of logits and values, which must be [n, 1]")
        return 0

    cdef float _weight(self, const float[:, ::1] rows, Py_ssize_t counts) noexcept nogil:
        """Of each row that counts."""
        cdef Py_ssize_t i, n = 0
        for i in range(rows.shape[0]):
            n += rows[i, counts] != 0
        return 1 / <float>n if n else 0

    cdef float _value(self, float error, float weight) noexcept nogil:
        cdef float square = error * error
        return weight * self.value_coeff * (2 * error) * (square <= self.most_error)

    cdef float _surrogate(self, float log_ratio, float advantage, float weight) noexcept nogil:
        """The derivative by the action's log-probability."""
        cdef float ratio = expf(log_ratio)
        cdef float clipped = min(max(ratio, self.least_ratio), self.most_ratio)
        return -weight * advantage * (advantage * ratio <= advantage * clipped) * ratio

    cdef void _categorical_row(self, const float *row, const float *z, float *d, Py_ssize_t n,
                               float weight) noexcept nogil:
        cdef const float *former = row + 1
        cdef float top, total, log_q, q, p, former_top, former_total, entropy = 0, shared = 0
        cdef Py_ssize_t j, action = <Py_ssize_t>row[0]
        total, top = _normaliser(z, n), _most(z, n)
        former_total, former_top = _normaliser(former, n), _most(former, n)
        cdef float log_total = logf(total)
        cdef float surrogate = self._surrogate(z[action] - top - log_total - former[n], former[n + 1], weight)
        for j in range(n):
            log_q = z[j] - top - log_total
            q, p = expf(z[j] - top) / total, expf(former[j] - former_top) / former_total
            entropy -= q * log_q
            if not (q == 0 or p == 0):  # RLlib's KL has constants there
                shared += p
        for j in range(n):
            log_q = z[j] - top - log_total
            q = expf(z[j] - top) / total
            d[j] = surrogate * ((j == action) - q) + weight * self.entropy_coeff * (q * (log_q + entropy))
            if self.has_kl:
                p = expf(former[j] - former_top) / former_total
                d[j] += weight * self.kl_coeff * (q * shared - (0 if q == 0 or p == 0 else p))

    cdef void _gaussian_row(self, const float *row, const float *z, float *d, Py_ssize_t n,
                            float weight) noexcept nogil:
        cdef const float *former = row + n
        cdef float mean, log_scale, variance, off, former_off, former_scale, log_p = 0
        cdef Py_ssize_t j
        for j in range(n):
            log_scale = _bounded(z[n + j], self.bound)
            off = row[j] - z[j]
            log_p -= off * off / (2 * expf(log_scale) * expf(log_scale)) + log_scale + LOG_ROOT_2_PI
        cdef float surrogate = self._surrogate(log_p - former[2 * n], former[2 * n + 1], weight)
        for j in range(n):
            mean, log_scale = z[j], _bounded(z[n + j], self.bound)
            variance = expf(log_scale) * expf(log_scale)
            off = row[j] - mean
            d[j] = surrogate * (off / variance)
            d[n + j] = surrogate * (off * off / variance - 1) - weight * self.entropy_coeff
            if self.has_kl:
                former_off, former_scale = mean - former[j], expf(former[n + j])
                d[j] += weight * self.kl_coeff * (former_off / variance)
                d[n + j] += weight * self.kl_coeff * (
                    1 - (former_scale * former_scale + former_off * former_off) / variance
                )
            d[n + j] *= -self.bound <= z[n + j] <= self.bound


cdef inline float _most(const float *z, Py_ssize_t n) noexcept nogil:
    cdef float most = z[0]
    cdef Py_ssize_t j
    for j in range(1, n):
        if z[j] > most:
            most = z[j]
    return most


cdef inline float _normaliser(const float *z, Py_ssize_t n) noexcept nogil:
    """The sum of all exp(z - max z)."""
    cdef float most = _most(z, n), total = 0
    cdef Py_ssize_t j
    for j in range(n):
        total += expf(z[j] - most)
    return total


cdef inline float _bounded(float x, float bound) noexcept nogil:
    return bound if x > bound else -bound if x < -bound else x

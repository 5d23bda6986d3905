"""Derivatives of PPO's loss with a Categorical policy, bit-identical to autograd: the same operations in the same
order.

Schulman et al. (2017), "Proximal Policy Optimization Algorithms", as in RLlib's PPOTorchLearner. Only elementwise
operations are here; sums, exponentials and softmax are torch's own, between the two halves.
"""
from libc.float cimport FLT_MAX
from libc.math cimport INFINITY

cdef float LEAST = -FLT_MAX  # least finite number, to which Categorical's entropy clamps logarithms


cdef class Derivatives:
    """Derivatives for minibatches of n steps, with k actions to choose from. All arrays are C-contiguous.

    Args:
        clip_param, vf_clip_param, vf_loss_coeff, entropy_coeff: as in PPO's config; `vf_clip_param` None: no limit.
        kl_coeff: as in PPO's config; None: no KL term.
    """

    cdef float least_ratio, most_ratio, most_error, value_coeff, entropy_coeff, kl_coeff
    cdef bint has_kl

    def __init__(self, *, double clip_param, object vf_clip_param, double vf_loss_coeff, double entropy_coeff,
                 object kl_coeff):
        self.least_ratio, self.most_ratio = <float>(1 - clip_param), <float>(1 + clip_param)
        self.most_error = INFINITY if vf_clip_param is None else vf_clip_param
        self.value_coeff, self.entropy_coeff = <float>vf_loss_coeff, <float>entropy_coeff
        self.has_kl = kl_coeff is not None
        self.kl_coeff = kl_coeff if self.has_kl else 0

    def by_ratios_and_probabilities(
        self, const float[:, ::1] logarithms, const float[:, ::1] probabilities, const float[::1] ratios,
        const float[:, ::1] values, const float[::1] advantages, const float[::1] targets,
        const unsigned char[::1] counts, float[:, ::1] by_probabilities, float[:, ::1] by_logarithms,
        float[::1] by_logp, float[:, ::1] by_values
    ):
        """Compute the first half: from the loss back to a policy's probabilities.

        Args:
            logarithms, probabilities: of all actions [n, k].
            ratios: the taken action's probability, divided by its former one [n].
            values: [n, 1].
            advantages, targets: [n].
            counts: 1 if a row counts, else 0 [n].
            by_probabilities, by_logarithms: of the entropy [n, k]. OUT
            by_logp: of the surrogate by the taken action's log-probability [n]. OUT
            by_values: [n, 1]. OUT
        """
        cdef Py_ssize_t i, j, n = ratios.shape[0], k = logarithms.shape[1]
        cdef float weight, half, by_entropy, error, square, ratio, gain, clipped, by_gain, by_ratio, bounded
        cdef float per_row = 1 / <float>_count(counts)
        _check(logarithms, n, k)
        _check(probabilities, n, k)
        _check(by_probabilities, n, k)
        _check(by_logarithms, n, k)
        _check(values, n, 1)
        _check(by_values, n, 1)
        _check_rows(min(advantages.shape[0], targets.shape[0], counts.shape[0], by_logp.shape[0]), n)
        with nogil:
            for i in range(n):
                weight = per_row if counts[i] else 0
                by_entropy = weight * self.entropy_coeff
                for j in range(k):
                    bounded = logarithms[i, j] if logarithms[i, j] >= LEAST else LEAST
                    by_probabilities[i, j] = by_entropy * bounded
                    by_logarithms[i, j] = by_entropy * probabilities[i, j] if logarithms[i, j] >= LEAST else 0
                ratio = ratios[i]
                gain = advantages[i] * ratio
                clipped = advantages[i] * min(max(ratio, self.least_ratio), self.most_ratio)
                half = weight / 2
                by_gain = -half if gain == clipped else 0 if gain > clipped else -weight
                by_ratio = by_gain * advantages[i]
                if self.least_ratio <= ratio <= self.most_ratio:  # both are equal there, and share the derivative
                    by_ratio = by_ratio - half * advantages[i]
                by_logp[i] = by_ratio * ratio
                error = values[i, 0] - targets[i]
                square = error * error
                by_values[i, 0] = (weight * self.value_coeff if square <= self.most_error else 0) * (error + error)

    def by_normalized_logits(
        self, const float[:, ::1] probabilities, const float[:, ::1] former, const long long[::1] actions,
        const unsigned char[::1] counts, const float[:, ::1] by_logarithms, const float[:, ::1] by_softmax,
        const float[::1] by_logp, float[:, ::1] derivatives, float[:, ::1] negative
    ):
        """Compute the second half: the sum of all terms.

        Args:
            probabilities, former: the policy's current probabilities, and those when actions were taken [n, k].
            actions: taken [n], each below k, which the caller must check.
            counts: 1 if a row counts, else 0 [n].
            by_logarithms: of the entropy [n, k].
            by_softmax: of the entropy, through the probabilities [n, k].
            by_logp: of the surrogate by the taken action's log-probability [n].
            derivatives: by logarithms of probabilities [n, k]. OUT
            negative: the negated derivatives. OUT
        """
        cdef Py_ssize_t i, j, n = actions.shape[0], k = probabilities.shape[1]
        cdef float weight, by_term, total, per_row = self.kl_coeff / <float>_count(counts)
        _check(former, n, k)
        _check(by_logarithms, n, k)
        _check(by_softmax, n, k)
        _check(derivatives, n, k)
        _check(negative, n, k)
        _check_rows(min(probabilities.shape[0], counts.shape[0], by_logp.shape[0]), n)
        with nogil:
            for i in range(n):
                weight = per_row if counts[i] else 0
                for j in range(k):
                    total = by_logarithms[i, j] + by_softmax[i, j]
                    if self.has_kl:  # its terms are constant where a probability is 0
                        by_term = 0 if probabilities[i, j] == 0 else weight
                        total = total - by_term * former[i, j]
                    total = total + (by_logp[i] if j == actions[i] else 0)
                    derivatives[i, j] = total
                    negative[i, j] = -total


cdef Py_ssize_t _count(const unsigned char[::1] counts):
    cdef Py_ssize_t i, n = 0
    for i in range(counts.shape[0]):
        n += counts[i] != 0
    return n


cdef int _check(const float[:, ::1] array, Py_ssize_t n, Py_ssize_t k) except -1:
    if array.shape[0] != n or array.shape[1] != k:
        raise ValueError(f"arrays must be [{n}, {k}], got [{array.shape[0]}, {array.shape[1]}]")
    return 0


cdef int _check_rows(Py_ssize_t least, Py_ssize_t n) except -1:
    if least < n:
        raise ValueError(f"arrays must have {n} rows, got {least}")
    return 0

"""Arithmetic between torch's calls when RLlib's distributions are sampled on the CPU; see inference/draws_cpu.py.

Each number is rounded where torch rounds it, so this must be compiled without contracting a * b + c. Arrays are float32
and C-contiguous; N rows of K choices.
"""
cimport numpy as cnp

cnp.import_array()


def subtract_highest(
    cnp.ndarray logits_NK not None,     # IN
    cnp.ndarray shifted_NK not None,    # OUT
    cnp.ndarray highest_N not None,     # OUT
):
    """Subtract each row's highest logit."""
    cdef Py_ssize_t i, j, n = cnp.PyArray_DIM(logits_NK, 0), k = cnp.PyArray_DIM(logits_NK, 1)
    cdef const float* logits = _floats(logits_NK, n * k)
    cdef float* shifted = _floats(shifted_NK, n * k)
    cdef float* highest = _floats(highest_N, n)
    for i in range(n):
        highest[i] = logits[i * k]
        for j in range(1, k):
            if logits[i * k + j] > highest[i]:
                highest[i] = logits[i * k + j]
        for j in range(k):
            shifted[i * k + j] = logits[i * k + j] - highest[i]


def sum_rows(
    cnp.ndarray values_NK not None,     # IN
    cnp.ndarray sum_N1 not None,        # OUT
):
    """Add each row's values from left to right, as torch.sum() does with fewer than four."""
    cdef Py_ssize_t i, j, n = cnp.PyArray_DIM(values_NK, 0), k = cnp.PyArray_DIM(values_NK, 1)
    cdef const float* values = _floats(values_NK, n * k)
    cdef float* sums = _floats(sum_N1, n)
    for i in range(n):
        sums[i] = values[i * k]
        for j in range(1, k):
            sums[i] += values[i * k + j]


def subtract_sums(
    cnp.ndarray logits_NK not None,     # IN
    cnp.ndarray log_sum_N1 not None,    # IN  of exp(logit - highest)
    cnp.ndarray highest_N not None,     # IN
    cnp.ndarray log_p_NK not None,      # OUT
):
    """Compute log-probabilities: each row's logits minus the logarithm of the sum of their exponentials."""
    cdef Py_ssize_t i, j, n = cnp.PyArray_DIM(logits_NK, 0), k = cnp.PyArray_DIM(logits_NK, 1)
    cdef const float* logits = _floats(logits_NK, n * k)
    cdef const float* log_sum = _floats(log_sum_N1, n)
    cdef const float* highest = _floats(highest_N, n)
    cdef float* log_p = _floats(log_p_NK, n * k)
    cdef float of_row
    for i in range(n):
        of_row = log_sum[i] + highest[i]
        for j in range(k):
            log_p[i * k + j] = logits[i * k + j] - of_row


def first_to_ring(
    cnp.ndarray p_NK not None,          # IN
    cnp.ndarray clock_NK not None,      # IN  exponentially distributed
    cnp.ndarray log_p_NK not None,      # IN
    int[::1] action_N not None,         # OUT
    cnp.ndarray logp_N not None,        # OUT
):
    """Draw as torch.multinomial() does: the choice with the greatest ratio of probability to exponential noise."""
    cdef Py_ssize_t i, j, first, n = cnp.PyArray_DIM(p_NK, 0), k = cnp.PyArray_DIM(p_NK, 1)
    cdef const float* p = _floats(p_NK, n * k)
    cdef const float* clock = _floats(clock_NK, n * k)
    cdef const float* log_p = _floats(log_p_NK, n * k)
    cdef float* logp = _floats(logp_N, n)
    cdef float rate, highest
    for i in range(n):
        first, highest = 0, p[i * k] / clock[i * k]
        for j in range(1, k):
            rate = p[i * k + j] / clock[i * k + j]
            if rate > highest:
                first, highest = j, rate
        action_N[i] = <int>first
        logp[i] = log_p[i * k + first]


def move(
    cnp.ndarray logits_NK2 not None,    # IN  means, then logarithms of standard deviations
    cnp.ndarray std_NK not None,        # IN
    cnp.ndarray log_std_NK not None,    # IN  the logarithm of `std`, rounded
    cnp.ndarray noise_NK not None,      # IN  normally distributed
    float constant,                     # IN  log(sqrt(2 pi))
    cnp.ndarray action_NK not None,     # OUT
    cnp.ndarray term_NK not None,       # OUT log-probabilities of the action's parts
):
    """Draw from normal distributions, and compute log-probabilities."""
    cdef Py_ssize_t i, j, at, n = cnp.PyArray_DIM(std_NK, 0), k = cnp.PyArray_DIM(std_NK, 1)
    cdef const float* logits = _floats(logits_NK2, 2 * n * k)
    cdef const float* std = _floats(std_NK, n * k)
    cdef const float* log_std = _floats(log_std_NK, n * k)
    cdef const float* noise = _floats(noise_NK, n * k)
    cdef float* action = _floats(action_NK, n * k)
    cdef float* term = _floats(term_NK, n * k)
    cdef float mean, offset, variance
    for i in range(n):
        for j in range(k):
            at = i * k + j
            mean = logits[2 * i * k + j]
            action[at] = noise[at] * std[at] + mean
            offset = action[at] - mean
            variance = std[at] * std[at]
            term[at] = -(offset * offset) / (variance + variance) - log_std[at] - constant  # a 2 would be a double


cdef float* _floats(cnp.ndarray array, Py_ssize_t size) except NULL:
    if (cnp.PyArray_TYPE(array) != cnp.NPY_FLOAT32 or not cnp.PyArray_IS_C_CONTIGUOUS(array)
            or cnp.PyArray_SIZE(array) != size):
        raise ValueError(f"expected {size} float32 numbers, C-contiguous, got {array.dtype} of shape "
                         f"{(<object>array).shape}")
    return <float*>cnp.PyArray_DATA(array)

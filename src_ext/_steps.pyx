"""Index arithmetic for the steps of many trajectories, one trajectory after the other.

NumPy has functions for all of this, but with many numbers they release the interpreter's lock. In a thread beside one
that samples, getting it back takes longer than the work, so these functions keep it.

Axes in names: S trajectory, N step.
"""
cimport numpy as cnp
import numpy as np
from libc.string cimport memcpy

from rows cimport row_bytes
from typedefs cimport row_t

cnp.import_array()

cdef enum:   # columns of an AgentEpisodeTable
    COUNT = 1
    LOOKBACK = 2
    FINAL = 4


def lengths(const row_t[:, ::1] numbers):
    """Return the number of steps after the lookback, int64 [S], of rows of an `AgentEpisodeTable`."""
    length_S = np.empty(numbers.shape[0], np.int64)
    cdef row_t[::1] out = length_S
    cdef Py_ssize_t s
    for s in range(numbers.shape[0]):
        out[s] = numbers[s, COUNT] + (numbers[s, FINAL] >= 0) - 1 - numbers[s, LOOKBACK]
    return length_S


def with_steps(const row_t[:] value_S, const row_t[::1] length_S):
    """Group trajectories that have a step by value.

    Returns:
        value -> indices of the trajectories, int64, ascending; values in the order of their first trajectories.
    """
    cdef dict found = {}
    cdef Py_ssize_t s
    for s in range(length_S.shape[0]):
        if length_S[s] > 0:
            value = value_S[s]
            if value not in found:
                found[value] = []
            found[value].append(s)
    return {value: np.array(which, np.int64) for value, which in found.items()}


def firsts_of_runs(const row_t[:] value_S, const row_t[::1] goes_on_V):
    """Return the indices where runs of one value begin. A value with 0 in `goes_on_V` begins a run each time."""
    cdef Py_ssize_t s
    return [s for s in range(value_S.shape[0])
            if s == 0 or value_S[s] != value_S[s - 1] or goes_on_V[value_S[s]] == 0]


def begins(const row_t[:] n_S, const row_t[:] more_S):
    """Return the number of steps before each trajectory, int64 [S]; each has n_S + more_S of them."""
    begin_S = np.empty(n_S.shape[0], np.int64)
    cdef row_t[::1] out = begin_S
    cdef Py_ssize_t s, n = 0
    for s in range(n_S.shape[0]):
        out[s] = n
        n += n_S[s] + more_S[s]
    return begin_S


def ends(const row_t[:] n_S):
    """Return the index of each trajectory's last step, int64 [S]; each has at least one."""
    last_S = np.empty(n_S.shape[0], np.int64)
    cdef row_t[::1] out = last_S
    cdef Py_ssize_t s, n = 0
    for s in range(n_S.shape[0]):
        n += n_S[s]
        out[s] = n - 1
    return last_S


def ranges(const row_t[:] first_S, const row_t[:] n_S):
    """Return first, first + 1, ... of each trajectory, `n_S` numbers each, int64 [N]."""
    cdef Py_ssize_t s, i, total = _total(n_S), n = 0
    steps = np.empty(total, np.int64)
    cdef row_t[::1] out = steps
    for s in range(n_S.shape[0]):
        for i in range(n_S[s]):
            out[n + i] = first_S[s] + i
        n += n_S[s]
    return steps


cdef Py_ssize_t _total(const row_t[:] n_S) except -1:
    cdef Py_ssize_t s, total = 0
    for s in range(n_S.shape[0]):
        if n_S[s] < 0:
            raise ValueError(f"a trajectory of {n_S[s]} steps")
        total += n_S[s]
    return total


def end_flags(const row_t[:] done_S, const row_t[:] n_S, int flag):
    """Return bool [N]: True at the last step of each trajectory whose `done_S` has this flag."""
    cdef Py_ssize_t s, n = 0
    flags = np.empty(_total(n_S), np.bool_)
    cdef cnp.npy_bool[::1] out = flags
    out[:] = False
    for s in range(n_S.shape[0]):
        n += n_S[s]
        if done_S[s] & flag and n_S[s] > 0:
            out[n - 1] = True
    return flags


def packed(const cnp.npy_bool[::1] flags):
    """Pack flags into bits, the first one lowest, as in Arrow: uint8 [(n + 7) // 8].

    True is any byte but 0, as in NumPy: bytes that are viewed as bools need not be 1.
    """
    cdef Py_ssize_t i, n = flags.shape[0]
    bits = np.empty((n + 7) // 8, np.uint8)
    cdef cnp.uint8_t[::1] out = bits
    out[:] = 0
    for i in range(n):
        out[i >> 3] |= <cnp.uint8_t>((flags[i] != 0) << (i & 7))
    return bits


def put(cnp.ndarray items, const row_t[::1] at, Py_ssize_t n):
    """Return an array [n, ...] with these items [s, ...] at the indices `at`, and 0 elsewhere."""
    cdef cnp.ndarray column = np.ascontiguousarray(items)
    if cnp.PyArray_DIM(column, 0) != at.shape[0]:
        raise ValueError(f"{cnp.PyArray_DIM(column, 0)} items for {at.shape[0]} places")
    cdef cnp.ndarray out = np.zeros((n, *(<object>column).shape[1:]), column.dtype)
    cdef size_t n_bytes = row_bytes(column)
    cdef char *source = cnp.PyArray_BYTES(column)
    cdef char *target = cnp.PyArray_BYTES(out)
    cdef Py_ssize_t i
    for i in range(at.shape[0]):
        if not 0 <= at[i] < n:
            raise IndexError(f"place {at[i]} of {n}")
    if column.dtype.hasobject:
        (<object>out)[np.asarray(at)] = column
        return out
    for i in range(at.shape[0]):
        memcpy(target + at[i] * n_bytes, source + i * n_bytes, n_bytes)
    return out


def joined(list columns):
    """Concatenate C-contiguous arrays [n, ...] of one dtype and one shape after the first axis, at least one."""
    if not columns:
        raise ValueError("expected one array at least")
    cdef cnp.ndarray first = <cnp.ndarray?>columns[0], column
    cdef Py_ssize_t n = 0
    for each in columns:
        column = <cnp.ndarray?>each
        if column.dtype != first.dtype or (<object>column).shape[1:] != (<object>first).shape[1:] \
                or not cnp.PyArray_IS_C_CONTIGUOUS(column) or column.dtype.hasobject:
            raise ValueError(f"expected C-contiguous {first.dtype} arrays [n, *{(<object>first).shape[1:]}]")
        n += cnp.PyArray_DIM(column, 0)
    cdef cnp.ndarray out = np.empty((n, *(<object>first).shape[1:]), first.dtype)
    cdef char *target = cnp.PyArray_BYTES(out)
    cdef size_t n_bytes
    for each in columns:
        column = <cnp.ndarray>each
        n_bytes = cnp.PyArray_NBYTES(column)
        memcpy(target, cnp.PyArray_BYTES(column), n_bytes)
        target += n_bytes
    return out


def encoded(list ids, text_of):
    """Encode ids by their texts.

    Args:
        ids: list, in which one object often stands many times.
        text_of: called once for each object.

    Returns:
        (texts, codes): each different text once, in order; int32 [n], the index of each id's text.
    """
    cdef dict of_object = {}, of_text = {}
    cdef Py_ssize_t i
    cdef cnp.int32_t code = 0
    ids = list(ids)  # keeps the objects alive, so that addresses identify them whatever text_of() does
    codes = np.empty(len(ids), np.int32)
    cdef cnp.int32_t[::1] out = codes
    last = None
    for i in range(len(ids)):
        each = ids[i]
        if i == 0 or each is not last:
            known = of_object.get(<size_t><void *>each)
            if known is None:
                known = of_object[<size_t><void *>each] = of_text.setdefault(text_of(each), len(of_text))
            code, last = known, each
        out[i] = code
    return list(of_text), codes

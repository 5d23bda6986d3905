"""Numbers of the steps of many trajectories, one trajectory's after the other's.

NumPy has functions for all this, but where there are many numbers they give up the interpreter's lock. In a thread
beside one that samples, to get it back takes longer than the work, so these keep it.

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
    """int64 [S], steps after the lookback, of rows of an `AgentEpisodeTable`."""
    length_S = np.empty(numbers.shape[0], np.int64)
    cdef row_t[::1] out = length_S
    cdef Py_ssize_t s
    for s in range(numbers.shape[0]):
        out[s] = numbers[s, COUNT] + (numbers[s, FINAL] >= 0) - 1 - numbers[s, LOOKBACK]
    return length_S


def with_steps(const row_t[:] value_S, const row_t[::1] length_S):
    """Value -> which trajectories with a step have it, int64, ascending; values in the order of their first ones."""
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
    """Where runs of one value begin, a list. A value whose entry of `goes_on_V` is 0 has a run for each time."""
    cdef Py_ssize_t s
    return [s for s in range(value_S.shape[0])
            if s == 0 or value_S[s] != value_S[s - 1] or goes_on_V[value_S[s]] == 0]


def begins(const row_t[:] n_S, const row_t[:] more_S):
    """int64 [S]: how many steps come before each trajectory's, which has n_S + more_S of them."""
    begin_S = np.empty(n_S.shape[0], np.int64)
    cdef row_t[::1] out = begin_S
    cdef Py_ssize_t s, n = 0
    for s in range(n_S.shape[0]):
        out[s] = n
        n += n_S[s] + more_S[s]
    return begin_S


def ends(const row_t[:] n_S):
    """int64 [S]: which step is each trajectory's last; each has one at least."""
    last_S = np.empty(n_S.shape[0], np.int64)
    cdef row_t[::1] out = last_S
    cdef Py_ssize_t s, n = 0
    for s in range(n_S.shape[0]):
        n += n_S[s]
        out[s] = n - 1
    return last_S


def ranges(const row_t[:] first_S, const row_t[:] n_S):
    """int64 [N]: of each trajectory first, first + 1, ..., `n_S` of them."""
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
    """bool [N]: True at the last step of each trajectory whose `done_S` has this flag."""
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
    """uint8 [(n + 7) // 8], the flags as bits, the first one lowest, as Arrow has them.

    True is any byte but 0, as in NumPy: bytes that were viewed as bools may be others than 1.
    """
    cdef Py_ssize_t i, n = flags.shape[0]
    bits = np.empty((n + 7) // 8, np.uint8)
    cdef cnp.uint8_t[::1] out = bits
    out[:] = 0
    for i in range(n):
        out[i >> 3] |= <cnp.uint8_t>((flags[i] != 0) << (i & 7))
    return bits


def put(cnp.ndarray items, const row_t[::1] at, Py_ssize_t n):
    """[n, ...]: these items [s, ...] at the places `at`, 0 at all others."""
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
    """C-contiguous arrays [n, ...] of one dtype and one shape behind the first axis, one at least, one after the
    other."""
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
    """(texts, int32 [n]): each different text of these ids once, in order, and which of them each id has.

    Args:
        ids: one object often stands there many times.
        text_of: asked once for each object.
    """
    cdef dict of_object = {}, of_text = {}
    cdef Py_ssize_t i
    cdef cnp.int32_t code = 0
    ids = list(ids)  # they live as long as their addresses stand for them, whatever text_of() does
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

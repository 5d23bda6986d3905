"""Chains of a lane's rows in a block, and copies of rows. Rows are in the order of arrival; each has the index of the
lane's previous row."""
cimport numpy as cnp
import numpy as np
from libc.string cimport memcpy

from rows cimport row_bytes
from typedefs cimport lane_t, row_t

cnp.import_array()


def chain(const row_t[::1] prev_R, Py_ssize_t last, Py_ssize_t n):
    """Return the last `n` rows of one lane, which end with row `last`.

    Returns:
        (rows, stride): int64 [n], ascending; `stride` is their common distance, or 0 if there is none. With a stride
        the rows are a slice; it is 1 for n < 2.
    """
    rows = np.empty(n, np.int64)
    cdef row_t[::1] out = rows
    cdef Py_ssize_t stride
    stride = _chain(prev_R, last, n, out)
    return rows, stride


def chains(const row_t[::1] prev_R, const row_t[::1] last_S, const row_t[::1] n_S):
    """Return the rows of many lanes, one lane after the other, int64; see `chain()`."""
    cdef Py_ssize_t s, first = 0, total = 0
    for s in range(n_S.shape[0]):
        total += n_S[s]
    rows = np.empty(total, np.int64)
    cdef row_t[::1] out = rows
    for s in range(n_S.shape[0]):
        _chain(prev_R, last_S[s], n_S[s], out[first:first + n_S[s]])
        first += n_S[s]
    return rows


def acted_rows(
    const row_t[::1] prev_R,       # [row] previous row of the same lane
    const row_t[:] row_S,          # [s] last row of each trajectory
    const row_t[:] count_S,        # [s] its number of rows
    const row_t[:] final_S,        # [s] its final observation; negative: none
):
    """Return the rows that trajectories have acted on, one trajectory after the other, int64.

    These are all of its rows, except for the last one if there is no final observation: it has not been acted upon.
    """
    cdef Py_ssize_t s, n, first = 0, total = 0, last
    for s in range(row_S.shape[0]):
        total += count_S[s] - (final_S[s] < 0)
    rows = np.empty(total, np.int64)
    cdef row_t[::1] out = rows
    for s in range(row_S.shape[0]):
        n, last = count_S[s], row_S[s]
        if final_S[s] < 0:
            n, last = n - 1, prev_R[last]
        _chain(prev_R, last, n, out[first:first + n])
        first += n
    return rows


cdef Py_ssize_t _chain(
    const row_t[::1] prev_R,       # [row] previous row of the same lane
    Py_ssize_t last,
    Py_ssize_t n,
    row_t[::1] out_rows,           # OUT [n]
) except -2:
    cdef Py_ssize_t i, row = last, stride = 1
    for i in range(n - 1, -1, -1):
        out_rows[i] = row
        row = prev_R[row]
    if n > 1:
        stride = out_rows[1] - out_rows[0]
    for i in range(2, n):
        if out_rows[i] - out_rows[i - 1] != stride:
            return 0
    return stride


def carried(
    const lane_t[::1] lanes,       # IN  live lanes of one module
    const row_t[::1] row_L,        # IN  [lane] last row
    const lane_t[::1] count_L,     # IN  [lane] rows in the chunk
    const lane_t[::1] from_env_t,  # IN  [len(lanes)] lookback begins here
    const row_t[::1] prev_R,       # IN  [row]
    const lane_t[::1] env_t_R,     # IN  [row]
    Py_ssize_t min_lookback_rows=0,
):
    """Select rows for the next chunk: each lane's last row, and rows of its lookback.

    The lookback has at least `min_lookback_rows` rows, if the lane has as many.

    Returns:
        (rows, counts): int64, grouped by lane, each lane's from last to first; int32 [len(lanes)] of them.
    """
    cdef Py_ssize_t i, k, n = 0, row
    cdef lane_t[::1] counts = np.zeros(lanes.shape[0], np.int32)
    for i in range(lanes.shape[0]):
        row = row_L[lanes[i]]
        k = 1
        while k < count_L[lanes[i]] and (k <= min_lookback_rows or env_t_R[prev_R[row]] >= from_env_t[i]):
            row = prev_R[row]
            k += 1
        counts[i] = <lane_t>k
        n += k
    cdef row_t[::1] rows = np.empty(n, np.int64)
    n = 0
    for i in range(lanes.shape[0]):
        row = row_L[lanes[i]]
        for _k in range(counts[i]):
            rows[n] = row
            row = prev_R[row]
            n += 1
    return np.asarray(rows), np.asarray(counts)


def gather(list columns, const row_t[::1] rows, const row_t[::1] counts):
    """Copy rows of columns [m, ...] of equal form, one after the other.

    The first `counts[0]` of `rows` are taken of the first column, the next `counts[1]` of the second, and so on.

    The interpreter's lock is kept: in a thread beside one that runs Python, releasing it for each of many small copies
    takes far longer than the copies.

    Args:
        columns: at least one, of any strides; of one dtype, not object, and one shape after the first axis.
        rows: int64 [n].
        counts: int64 [columns]; they sum to n.

    Returns:
        [n, ...].

    Raises:
        IndexError: a row is not in its column.
    """
    if not columns:
        raise ValueError("expected one column at least")
    cdef cnp.ndarray column = <cnp.ndarray?>columns[0]
    cdef cnp.ndarray out = np.empty((rows.shape[0], *(<object>column).shape[1:]), column.dtype)
    cdef size_t n_bytes = row_bytes(out)
    cdef Py_ssize_t first = 0, left = rows.shape[0], k
    for k in range(counts.shape[0]):
        left = left - counts[k] if 0 <= counts[k] <= left else -1
    if counts.shape[0] != len(columns) or left != 0:
        raise ValueError(f"{len(columns)} columns, {rows.shape[0]} rows, counts {np.asarray(counts).tolist()}")
    if out.dtype.hasobject:
        raise TypeError(f"columns of {out.dtype}")
    for k in range(len(columns)):
        column = _with_whole_rows(<cnp.ndarray?>columns[k])
        if column.dtype != out.dtype or row_bytes(column) != n_bytes:
            raise TypeError(f"rows of {out.dtype}, {n_bytes} bytes each, and of {column.dtype}, {row_bytes(column)}")
        _copy_rows(column, rows[first:first + counts[k]], n_bytes, cnp.PyArray_BYTES(out) + first * n_bytes)
        first += counts[k]
    return out


cdef cnp.ndarray _with_whole_rows(cnp.ndarray column):
    """Return the column, or a copy of it, in which each row is one piece of memory."""
    cdef Py_ssize_t expected = cnp.PyArray_ITEMSIZE(column)
    cdef int axis
    for axis in range(cnp.PyArray_NDIM(column) - 1, 0, -1):
        if cnp.PyArray_STRIDE(column, axis) != expected and cnp.PyArray_DIM(column, axis) > 1:
            return np.ascontiguousarray(column)
        expected *= cnp.PyArray_DIM(column, axis)
    return column


cdef int _copy_rows(
    cnp.ndarray column,            # IN  [m, ...]
    const row_t[::1] rows,         # IN  [n] in it
    size_t n_bytes,
    char* out,                     # OUT [n * n_bytes]
) except -1:
    cdef char* data = cnp.PyArray_BYTES(column)
    cdef Py_ssize_t stride = cnp.PyArray_STRIDE(column, 0), m = cnp.PyArray_DIM(column, 0), i
    cdef row_t least = 0, most = -1
    for i in range(rows.shape[0]):
        least, most = min(least, rows[i]), max(most, rows[i])
    if least < 0 or most >= m:
        raise IndexError(f"rows {least} to {most} of a column of {m}")
    if n_bytes == 8:
        for i in range(rows.shape[0]):
            memcpy(out + 8 * i, data + rows[i] * stride, 8)
    elif n_bytes == 4:
        for i in range(rows.shape[0]):
            memcpy(out + 4 * i, data + rows[i] * stride, 4)
    else:
        for i in range(rows.shape[0]):
            memcpy(out + i * n_bytes, data + rows[i] * stride, n_bytes)
    return 0


def write_rows(dict columns, dict outputs, Py_ssize_t first, Py_ssize_t n):
    """Copy outputs [n, ...] to rows first .. first + n of the columns with the same keys.

    Returns:
        False if an output has no column, or one of another dtype or shape. The caller must then write all outputs in
        the slow way; some may have been copied already.
    """
    cdef size_t n_bytes
    cdef cnp.ndarray column, rows
    if len(columns) != len(outputs):
        return False
    for name, value in outputs.items():
        rows = <cnp.ndarray?>value
        column = columns.get(name)
        if column is None:
            return False
        n_bytes = row_bytes(column)
        if (cnp.PyArray_TYPE(rows) != cnp.PyArray_TYPE(column) or not cnp.PyArray_ISCARRAY_RO(rows)
                or cnp.PyArray_NDIM(rows) != cnp.PyArray_NDIM(column) or cnp.PyArray_DIM(rows, 0) != n
                or first + n > cnp.PyArray_DIM(column, 0)
                or not cnp.PyArray_CompareLists(cnp.PyArray_DIMS(rows) + 1, cnp.PyArray_DIMS(column) + 1,
                                                cnp.PyArray_NDIM(rows) - 1)):
            return False
        memcpy(cnp.PyArray_BYTES(column) + first * n_bytes, cnp.PyArray_DATA(rows), n * n_bytes)
    return True

"""Writing one leaf of an observation to the rows of a block.

An array that fits is copied as bytes, and float64 for a leaf of float32 is rounded on the way; all else goes through
NumPy, which reports values that do not fit.
"""
cimport cython
cimport numpy as cnp
import numpy as np
from libc.string cimport memcpy

from rows cimport row_bytes

from copy import deepcopy

from fastmarl.core.errors import shown
from fastmarl.core.spaces.values import can_hold, converted, described

cnp.import_array()


class UnfitValueError(Exception):
    """A value does not fit its leaf; Scatter adds env, agent and env step."""


cdef class LeafRows:
    """The rows of one leaf of an observation space, and the conversion of values to them.

    Args:
        array: [capacity, *shape], C-contiguous; of object dtype for leaves that are not arrays.
        path: keys and indices that lead from an observation to this leaf.
        sizes: required number of entries of each container on that path; -1: any number.
        any_form: True if numbers may come in another form; see `converted()`.
    """
    def __init__(self, cnp.ndarray array, tuple path, tuple sizes, bint any_form=False):
        self.array = array
        self.path = path
        self.sizes = sizes
        self.any_form = any_form
        self.type_num = cnp.PyArray_TYPE(array)
        self.ndim = cnp.PyArray_NDIM(array) - 1
        self.is_object = self.type_num == cnp.NPY_OBJECT
        self.rounds = self.type_num == cnp.NPY_FLOAT
        self.row_bytes = row_bytes(array)
        if not self.is_object:
            self.bytes_ = array.reshape(-1).view(np.uint8).reshape(len(array), self.row_bytes)

    cdef int write(self, Py_ssize_t row, object value) except -1:
        """Copy the leaf's part of `value`, a whole observation, to `row`; raise UnfitValueError if it does not fit."""
        if self.path:
            value = self._follow(value)
        if not self.copies(row, value):
            self._convert(row, value)
        return 0

    cdef bint copies(self, Py_ssize_t row, object value) except -1:
        """Copy `value` to `row` if it is an array that fits the leaf; return False if not. Runs no Python code."""
        if self.is_object or not cnp.PyArray_CheckExact(value) or not self._has_shape(<cnp.ndarray>value):
            return False
        cdef int type_num = cnp.PyArray_TYPE(<cnp.ndarray>value)
        if type_num == self.type_num:
            if self.row_bytes:
                memcpy(&self.bytes_[row, 0], cnp.PyArray_DATA(<cnp.ndarray>value), self.row_bytes)
        elif type_num == cnp.NPY_DOUBLE and self.rounds:
            if self.row_bytes:
                _round(<const double*>cnp.PyArray_DATA(<cnp.ndarray>value), <float*>&self.bytes_[row, 0],
                       self.row_bytes // sizeof(float))
        else:
            return False
        return True

    @cython.final
    cdef bint _has_shape(self, cnp.ndarray value) noexcept:
        """Return True if it has the leaf's shape and is one piece of memory."""
        cdef int axis
        if (cnp.PyArray_NDIM(value) != self.ndim
                or not cnp.PyArray_ISCARRAY_RO(value)):          # contiguous, aligned, native byte order
            return False
        for axis in range(self.ndim):
            if cnp.PyArray_DIMS(value)[axis] != cnp.PyArray_DIMS(self.array)[axis + 1]:
                return False
        return True

    cdef object _follow(self, object value):
        cdef Py_ssize_t depth
        for depth in range(len(self.path)):
            try:
                size = len(value)
                entry = value[self.path[depth]]
            except Exception as error:
                raise UnfitValueError(f"expected an entry {self.path[depth]!r} in {shown(value)}; return what the "
                                      "observation space promises") from error
            if size != self.sizes[depth] and self.sizes[depth] >= 0:
                raise UnfitValueError(f"expected {self.sizes[depth]} entries beside {self.path[depth]!r}, got {size}: "
                                      f"{shown(value)}; return what the observation space promises")
            value = entry
        return value

    cdef int _convert(self, Py_ssize_t row, object value) except -1:
        """Convert by NumPy, slowly but safely: values that the dtype can't hold are an error."""
        if self.is_object:
            try:
                self.array[row] = deepcopy(value)                 # the env may reuse its own object
            except Exception as error:
                raise UnfitValueError(f"can't be copied, as it must be to be kept: {shown(value)}: "
                                      f"{type(error).__name__}: {error}") from error
            return 0
        try:
            given = np.asarray(value)
        except Exception as error:                                # its code may raise anything
            raise UnfitValueError(f"expected an array, got {shown(value)}: {error}") from error
        shape = (<object>self.array).shape[1:]
        if self.any_form:
            given = converted(given, self.array.dtype, shape)
        if self.copies(row, given):
            return 0
        if given.shape != shape or not can_hold(self.array.dtype, given):
            raise UnfitValueError(f"expected {self.array.dtype} of shape {shape}, got {described(given)}; return what "
                                  "the observation space promises")
        self.array[row] = given
        return 0

    cdef int copy_row(self, Py_ssize_t row, LeafRows source, Py_ssize_t source_row) except -1:
        if self.is_object:
            self.array[row] = source.array[source_row]
        elif self.row_bytes:
            memcpy(&self.bytes_[row, 0], &source.bytes_[source_row, 0], self.row_bytes)
        return 0


cdef void _round(const double* source, float* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = <float>source[i]

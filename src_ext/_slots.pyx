"""An env's dicts -> their places in memory that is shared with the runner's process (see `fastmarl.vector.slots`).

As in `_scatter`, a key is first compared by identity with the one that is expected next.
"""
cimport numpy as cnp
from cpython.dict cimport PyDict_CheckExact
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_AsDouble, PyFloat_Check
from cpython.long cimport PyLong_AsLong, PyLong_CheckExact
from cpython.object cimport PyObject
from libc.string cimport memcpy

import numpy as np

from python_api cimport PyDict_GetItemWithError, PyDict_Next, PyDict_Size, PyList_GET_ITEM
from typedefs cimport flag_t, lane_t

cnp.import_array()

cdef object NUMPY_FALSE = np.False_
cdef object NUMPY_TRUE = np.True_
cdef frozenset NUMBERS = frozenset((bool, np.float32, np.int64, np.int32, np.bool_))


class MisfitError(Exception):
    """There is no place for this value; nobody outside `fastmarl.vector` sees it."""


cdef class ResultWriter:
    """Writes what one env returns: the values, and the order of each dict's keys.

    Args:
        keys: ids of the K - 1 agents, and "__all__".
        places_PK: int32 [4, 1 + K]: of each dict the number of its entries, and the places of their keys, then 0.
        flags_FK: uint8 [2, K], of terminateds and truncateds, in the order of the entries, then 0.
        reward_K: float64 [>= K], of rewards, in the order of the entries.
        arrays: per agent where its observation goes to, C-contiguous; None if that takes more than an array.
        write_slowly: (place of an agent, its observation): writes what is no such array, or raises MisfitError.
    """
    cdef list keys, arrays
    cdef dict place_of
    cdef lane_t[:, ::1] places_PK
    cdef flag_t[:, ::1] flags_FK
    cdef double[::1] reward_K
    cdef object write_slowly

    def __init__(self, list keys, places_PK, flags_FK, reward_K, list arrays, write_slowly):
        self.keys = keys
        self.place_of = {key: place for place, key in enumerate(keys)}
        self.places_PK = places_PK
        self.flags_FK = flags_FK
        self.reward_K = reward_K
        self.arrays = arrays
        self.write_slowly = write_slowly

    def write(self, obs, rewards, terminateds, truncateds):
        """Write four dicts. Raises MisfitError, and OverflowError for a reward beyond floats: then nothing counts."""
        if not (isinstance(obs, dict) and isinstance(rewards, dict) and isinstance(terminateds, dict)
                and isinstance(truncateds, dict)):
            raise MisfitError
        self._observations(obs)
        self._rewards(rewards)
        self._flags(0, terminateds)
        self._flags(1, truncateds)

    cdef Py_ssize_t _begin(self, Py_ssize_t part, object mapping) except -1:
        """The number of the dict's entries; what stands behind them is cleared."""
        cdef Py_ssize_t i, n = PyDict_Size(mapping), before = self.places_PK[part, 0]
        if n > len(self.keys):
            raise MisfitError
        for i in range(n, before):
            self.places_PK[part, 1 + i] = 0
            if part >= 2:
                self.flags_FK[part - 2, i] = 0
        self.places_PK[part, 0] = <lane_t>n
        return n

    cdef Py_ssize_t _place(self, PyObject* key, Py_ssize_t expected, bint or_all) except -1:
        """The place of a key, `expected` most of the time."""
        cdef PyObject* found
        cdef Py_ssize_t place, n = len(self.keys)
        if expected < n and PyList_GET_ITEM(self.keys, expected) == key:
            place = expected
        else:
            found = PyDict_GetItemWithError(self.place_of, <object>key)
            if found == NULL:
                raise MisfitError
            place = PyLong_AsLong(<object>found)
            if type(self.keys[place]) is not type(<object>key):       # 1 and True are equal, but not the same id
                raise MisfitError
        if place == n - 1 and not or_all:
            raise MisfitError
        return place

    cdef int _observations(self, object obs) except -1:
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t pos = 0, i = 0, place = -1
        self._begin(0, obs)
        while PyDict_Next(obs, &pos, &key, &value):                    # borrowed from the dict
            place = self._place(key, place + 1, False)
            self.places_PK[0, 1 + i] = <lane_t>place
            i += 1
            if not _copy(self.arrays[place], <object>value):
                self.write_slowly(place, <object>value)
        return 0

    cdef int _rewards(self, object rewards) except -1:
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t pos = 0, i = 0, place = -1
        self._begin(1, rewards)
        while PyDict_Next(rewards, &pos, &key, &value):
            place = self._place(key, place + 1, False)
            self.places_PK[1, 1 + i] = <lane_t>place
            if PyFloat_Check(<object>value):
                self.reward_K[i] = PyFloat_AS_DOUBLE(<object>value)
            elif PyLong_CheckExact(<object>value) or type(<object>value) in NUMBERS:
                self.reward_K[i] = PyFloat_AsDouble(<object>value)
            else:
                raise MisfitError
            i += 1
        return 0

    cdef int _flags(self, Py_ssize_t part, object flags) except -1:
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t pos = 0, i = 0, place = -1
        self._begin(2 + part, flags)
        while PyDict_Next(flags, &pos, &key, &value):
            place = self._place(key, place + 1, True)
            self.places_PK[2 + part, 1 + i] = <lane_t>place
            if <object>value is False or <object>value is NUMPY_FALSE:
                self.flags_FK[part, i] = 0
            elif <object>value is True or <object>value is NUMPY_TRUE:
                self.flags_FK[part, i] = 1
            else:
                raise MisfitError
            i += 1
        return 0


cdef bint _copy(object target, object value) except -1:
    """Copy an array of the same type and shape; False for anything else."""
    cdef int axis
    cdef cnp.ndarray source, out
    if target is None or not cnp.PyArray_CheckExact(value):
        return False
    source, out = <cnp.ndarray>value, <cnp.ndarray>target
    if (cnp.PyArray_TYPE(source) != cnp.PyArray_TYPE(out) or cnp.PyArray_NDIM(source) != cnp.PyArray_NDIM(out)
            or not cnp.PyArray_ISCARRAY_RO(source)):                  # contiguous, aligned, native byte order
        return False
    for axis in range(cnp.PyArray_NDIM(source)):
        if cnp.PyArray_DIMS(source)[axis] != cnp.PyArray_DIMS(out)[axis]:
            return False
    memcpy(cnp.PyArray_DATA(out), cnp.PyArray_DATA(source), cnp.PyArray_NBYTES(source))
    return True


def tells(infos):
    """Whether a dict of infos has one that is recorded, or is an error."""
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t pos = 0
    while PyDict_Next(infos, &pos, &key, &value):
        if <object>value is not None and not (PyDict_CheckExact(<object>value) and PyDict_Size(<object>value) == 0):
            return True
    return False

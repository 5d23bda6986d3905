"""Copying between an env's dicts and slots in memory that its process shares with the runner's.

See `vector/workers/slots.py`. As in `_scatter`, a key is first compared by identity with the one that is expected next.
"""
cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_AsDouble, PyFloat_Check
from cpython.list cimport PyList_GET_ITEM
from cpython.long cimport PyLong_AsLong, PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from libc.string cimport memcpy

import numpy as np

from typedefs cimport flag_t, lane_t

cnp.import_array()

cdef enum:
    REMEMBERED = 256     # number of orders of keys that are kept

cdef enum:               # the dicts, in the order of `places_PK`
    OBSERVATIONS = 0
    REWARDS = 1
    TERMINATEDS = 2
    TRUNCATEDS = 3

cdef object NUMPY_FALSE = np.False_
cdef object NUMPY_TRUE = np.True_
cdef frozenset NUMBERS = frozenset((bool, np.float32, np.int64, np.int32, np.bool_))


class MisfitError(Exception):
    """A value does not fit its slot; raised and handled within `core/vector`."""


cdef class ResultWriter:
    """Writes one env's results: the values, and the order of each dict's keys.

    Args:
        keys: ids of the K - 1 agents, and "__all__".
        places_PK: int32 [4, 1 + K]: number of entries of each dict, and the places of their keys, then 0.
        flags_FK: uint8 [2, K], of terminateds and truncateds, in the order of the entries, then 0.
        reward_K: float64 [>= K], rewards in the order of the entries.
        arrays: slots of the agents' observations, C-contiguous; None if an observation is not one array.
        slow_writers: functions by agent that write other observations, or raise MisfitError.
    """
    cdef list keys, arrays, slow_writers
    cdef dict place_of
    cdef lane_t[:, ::1] places_PK
    cdef flag_t[:, ::1] flags_FK
    cdef double[::1] reward_K

    def __init__(self, list keys, places_PK, flags_FK, reward_K, list arrays, list slow_writers):
        self.keys = keys
        self.place_of = {key: place for place, key in enumerate(keys)}
        self.places_PK = places_PK
        self.flags_FK = flags_FK
        self.reward_K = reward_K
        self.arrays = arrays
        self.slow_writers = slow_writers

    def write(self, obs, rewards, terminateds, truncateds):
        """Write four dicts. After MisfitError, and OverflowError for a reward beyond floats, the memory is invalid."""
        if not (isinstance(obs, dict) and isinstance(rewards, dict) and isinstance(terminateds, dict)
                and isinstance(truncateds, dict)):
            raise MisfitError
        self._write(OBSERVATIONS, obs)
        self._write(REWARDS, rewards)
        self._write(TERMINATEDS, terminateds)
        self._write(TRUNCATEDS, truncateds)

    cdef int _write(self, Py_ssize_t part, object mapping) except -1:
        """Write one of the dicts, and clear the remaining entries."""
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t pos = 0, i, place = -1, n = PyDict_Size(mapping), n_places = len(self.keys)
        if n > n_places:
            raise MisfitError
        for i in range(n, self.places_PK[part, 0]):
            self.places_PK[part, 1 + i] = 0
            if part >= TERMINATEDS:
                self.flags_FK[part - TERMINATEDS, i] = 0
        self.places_PK[part, 0] = <lane_t>n
        if part < TERMINATEDS:
            n_places -= 1                                              # "__all__" has flags only
        i = 0
        while PyDict_Next(mapping, &pos, &key, &value):
            agent_id, entry = <object>key, <object>value               # as the dict may change while Python code runs
            place = _place_of(self.keys, self.place_of, agent_id, place + 1)
            if not 0 <= place < n_places:
                raise MisfitError
            self.places_PK[part, 1 + i] = <lane_t>place
            if part == REWARDS:
                self.reward_K[i] = _number(entry)
            elif part >= TERMINATEDS:
                self.flags_FK[part - TERMINATEDS, i] = _flag(entry)
            elif not _copy(self.arrays[place], entry):
                self.slow_writers[place](entry)
            i += 1
        return 0


cdef class ResultReader:
    """Reads the results that `ResultWriter` has written to the same memory.

    Args:
        keys: see ResultWriter.
        header: uint8: bytes of places_PK and flags_FK, by which known orders are recognised.
        places_PK, flags_FK, reward_K: see ResultWriter.
        values: observations by agent, as views of the memory.
    """
    cdef list keys, values
    cdef const unsigned char[::1] header
    cdef const lane_t[:, ::1] places_PK
    cdef const flag_t[:, ::1] flags_FK
    cdef const double[::1] reward_K
    cdef dict seen                          # header -> (observations, ids of agents with rewards, two dicts of flags)

    def __init__(self, list keys, header, places_PK, flags_FK, reward_K, list values):
        self.keys = keys
        self.header = header
        self.places_PK = places_PK
        self.flags_FK = flags_FK
        self.reward_K = reward_K
        self.values = values
        self.seen = {}

    def read(self, infos):
        """Return the written results with these infos. Later calls may return some of the dicts again; don't change
        them."""
        cdef Py_ssize_t i
        cdef dict rewards = {}
        header = PyBytes_FromStringAndSize(<const char*>&self.header[0], self.header.shape[0])
        seen = self.seen.get(header)
        if seen is None:
            if len(self.seen) == REMEMBERED:
                self.seen.clear()
            seen = self.seen[header] = self._look()
        obs, rewarded, terminateds, truncateds = <tuple>seen
        for i in range(len(<list>rewarded)):
            rewards[(<list>rewarded)[i]] = self.reward_K[i]
        return obs, rewards, terminateds, truncateds, infos

    cdef tuple _look(self):
        cdef Py_ssize_t i
        obs = {self.keys[place]: self.values[place] for place in self._order(OBSERVATIONS)}
        rewarded = [self.keys[place] for place in self._order(REWARDS)]
        flags = [{self.keys[place]: self.flags_FK[part, i] != 0 for i, place in enumerate(self._order(2 + part))}
                 for part in range(2)]
        return obs, rewarded, flags[0], flags[1]

    cdef list _order(self, Py_ssize_t part):
        """Return the places of the keys of one dict."""
        cdef Py_ssize_t i
        return [self.places_PK[part, 1 + i] for i in range(self.places_PK[part, 0])]


cdef class ActionSlots:
    """One env's next actions: numbers of Discrete spaces, or arrays.

    Args:
        agents: ids of all K agents.
        order_K: int32 [1 + K]: number of acting agents, and their places, in the order of the dict.
        number_K: int64 [>= K]: actions that are numbers, in the order of the dict.
        arrays: slots of the agents' actions, C-contiguous; None if an action is a number.
    """
    cdef list agents, arrays
    cdef dict place_of
    cdef lane_t[::1] order_K
    cdef long long[::1] number_K

    def __init__(self, list agents, order_K, number_K, list arrays):
        self.agents = agents
        self.place_of = {agent: place for place, agent in enumerate(agents)}
        self.order_K = order_K
        self.number_K = number_K
        self.arrays = arrays

    def write(self, dict actions):
        """Write all actions; return False if one does not fit, in which case the memory is invalid."""
        cdef Py_ssize_t i = 0, place = -1
        cdef int overflow = 0
        for agent_id, action in actions.items():
            place = _place_of(self.agents, self.place_of, agent_id, place + 1)
            if place < 0:
                return False
            self.order_K[1 + i] = <lane_t>place
            if self.arrays[place] is None:
                if not PyLong_CheckExact(action):
                    return False
                self.number_K[i] = PyLong_AsLongLongAndOverflow(action, &overflow)
                if overflow:
                    return False
            elif not _copy(self.arrays[place], action):
                return False
            i += 1
        self.order_K[0] = <lane_t>i
        return True

    def read(self):
        """Return the written actions; arrays are copies, which the env may change."""
        cdef Py_ssize_t i, place
        cdef dict actions = {}
        for i in range(self.order_K[0]):
            place = self.order_K[1 + i]
            array = self.arrays[place]
            actions[self.agents[place]] = self.number_K[i] if array is None else array.copy()
        return actions


cdef Py_ssize_t _place_of(list keys, dict place_of, object key, Py_ssize_t expected) except -2:
    """Return the place of a key, which is mostly `expected`; -1 if it has none."""
    cdef PyObject* found
    cdef Py_ssize_t place
    if expected < len(keys) and PyList_GET_ITEM(keys, expected) == <PyObject*>key:
        return expected
    found = PyDict_GetItemWithError(place_of, key)
    if found == NULL:
        return -1
    place = PyLong_AsLong(<object>found)
    return place if type(keys[place]) is type(key) else -1   # 1 and True are equal, but not the same id


cdef double _number(object reward) except? -1.0:
    if PyFloat_Check(reward):
        return PyFloat_AS_DOUBLE(reward)
    if PyLong_CheckExact(reward) or type(reward) in NUMBERS:
        return PyFloat_AsDouble(reward)
    raise MisfitError


cdef int _flag(object flag) except -1:
    if flag is False or flag is NUMPY_FALSE:
        return 0
    if flag is True or flag is NUMPY_TRUE:
        return 1
    raise MisfitError


cdef bint _copy(object target, object value) except -1:
    """Copy an array of equal type and shape; return False for anything else."""
    cdef cnp.ndarray source, out
    if target is None or not cnp.PyArray_CheckExact(value):
        return False
    source, out = <cnp.ndarray>value, <cnp.ndarray>target
    if (cnp.PyArray_TYPE(source) != cnp.PyArray_TYPE(out) or not cnp.PyArray_SAMESHAPE(source, out)
            or not cnp.PyArray_ISCARRAY_RO(source) or not cnp.PyArray_ISCARRAY(out)):  # also requires native byte order
        return False
    memcpy(cnp.PyArray_DATA(out), cnp.PyArray_DATA(source), cnp.PyArray_NBYTES(source))
    return True


def has_any_info(infos):
    """Return True if an info must be recorded, or is an error."""
    for info in infos.values():
        if info is not None and (type(info) is not dict or info):
            return True
    return False

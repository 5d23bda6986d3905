"""The live agents of one env, for compiled code."""
import numpy as np
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.list cimport PyList_GET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from prefetch cimport fastmarl_prefetch
from typedefs cimport flag_t, lane_t

cdef enum:
    LINE = 64            # bytes


cdef class EnvLanes:
    """The live agents of one env, by id, and in the order of its last observation dict, whose agents act next."""

    def __init__(self):
        self.next_keys = None
        self.clear()
        self._grow(8)

    cdef int _grow(self, Py_ssize_t capacity) except -1:
        cdef Py_ssize_t old = 0 if self.next_keys is None else self.next_keys.shape[0]
        addresses, lanes = np.zeros((4, capacity), np.uintp), np.zeros((2, capacity), np.int32)
        if old:
            addresses[0, :old], lanes[0, :old] = self.keys, self.lanes
        self.keys, self.seen_keys, self.seen_values = addresses[:3]
        self.lanes, self.next_lanes = lanes
        self.next_keys = addresses[3]      # last: its length is that of all arrays
        return 0

    cdef Py_ssize_t see(self, object obs) except -1:
        """Store the addresses of the dict's keys and values, borrowed from it; return their number."""
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t pos = 0, n = 0
        if self.n_held:
            raise RuntimeError("this env's observations are being recorded; they can't be recorded from within")
        if self.next_keys.shape[0] < PyDict_Size(obs):
            self._grow(2 * PyDict_Size(obs))
        while PyDict_Next(obs, &pos, &key, &value):
            self.seen_keys[n] = <size_t>key
            self.seen_values[n] = <size_t>value
            fastmarl_prefetch(value)
            fastmarl_prefetch(<char*>value + LINE)
            n += 1
        return n

    cdef int hold(self, Py_ssize_t n) except -1:
        """Own the keys and values that were seen, because Python code or another thread may change the dict."""
        cdef Py_ssize_t i
        if self.n_held:
            return 0
        for i in range(n):
            Py_INCREF(<object><PyObject*>self.seen_keys[i])
            Py_INCREF(<object><PyObject*>self.seen_values[i])
        self.n_held = n
        return 0

    cdef int let_go(self) except -1:
        """Undo `hold()`, if it was called."""
        cdef Py_ssize_t i
        for i in range(self.n_held):
            Py_DECREF(<object><PyObject*>self.seen_keys[i])
            Py_DECREF(<object><PyObject*>self.seen_values[i])
        self.n_held = 0
        return 0

    def acting(self):
        """Return the lanes of the agents in the env's last observation dict, in its order."""
        return [self.lanes[i] for i in range(self.n_acting)]

    def resume(self, lane_t env_t, list agent_ids, list lanes, list acting, list infos):
        """Continue in the middle of an episode.

        Args:
            env_t: env steps since its reset.
            agent_ids: agents' ids by lane; the list of the lane table.
            lanes: lanes of the live agents.
            acting: lanes of the agents in the last observation dict, in its order.
            infos: see the attribute.
        """
        cdef Py_ssize_t i, lane
        self.clear()
        if self.lanes.shape[0] < len(acting):
            self._grow(len(acting))
        for lane in lanes:
            self.lane_of[agent_ids[lane]] = lane
        for i in range(len(acting)):
            self.lanes[i] = acting[i]
            self.keys[i] = <size_t>PyList_GET_ITEM(agent_ids, self.lanes[i])
        self.n_acting = len(acting)
        self.env_t, self.infos = env_t, infos
        self.is_complete = True

    cpdef clear(self):
        """Forget all agents, as a new episode begins."""
        self.order = None
        self.lane_of = {}
        if self.infos is None or self.infos:
            self.infos = []
        self.env_t = 0
        self.n_acting = 0
        self.is_complete, self.all_done = False, 0


def set_env_steps(list envs, const lane_t[::1] env_t_E):
    """Set the number of each env's steps since its reset; the results of the last one are to be recorded."""
    cdef Py_ssize_t env_index
    for env_index in range(len(envs)):
        (<EnvLanes>envs[env_index]).env_t = env_t_E[env_index]
        (<EnvLanes>envs[env_index]).is_complete = False


def end_step(list envs, const flag_t[::1] all_done_E):
    """Mark the results of each env's last step or reset as recorded, and set its `__all__` flags."""
    cdef Py_ssize_t env_index
    for env_index in range(len(envs)):
        (<EnvLanes>envs[env_index]).all_done = all_done_E[env_index]
        (<EnvLanes>envs[env_index]).is_complete = True

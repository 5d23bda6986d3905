from cpython.object cimport PyObject

from typedefs cimport flag_t, lane_t, row_t

from fastmarl.core.native._env_lanes cimport EnvLanes
from fastmarl.core.native._module_rows cimport ModuleRows


cdef class Scatter:
    cdef object __weakref__                 # for the table, which this object keeps alive
    cdef object table
    cdef object grow
    cdef readonly list modules              # of ModuleRows
    cdef readonly list envs                 # of EnvLanes
    cdef row_t[::1] row_L                   # last row of the lane
    cdef row_t[::1] final_L                 # index of its final observation, or -1
    cdef lane_t[::1] count_L                # number of rows in the current chunk, including lookback
    cdef lane_t[::1] module_L
    cdef lane_t[::1] place_L                # position in the env's last observation dict
    cdef flag_t[::1] done_L
    cdef lane_t[::1] lookback_L, end_env_t_L
    cdef row_t[::1] t_started_L
    cdef list agent_ids                     # by lane; EnvLanes.keys holds addresses of these
    cdef list done_lanes                    # lanes finished in this step by individual flags
    cdef Py_ssize_t _lane(self, EnvLanes env, object key, Py_ssize_t* place) except -2
    cdef int _adopt(self, EnvLanes env, Py_ssize_t lane, object key) except -1
    cdef int _reward(self, EnvLanes env, Py_ssize_t env_index, object agent_id, object value,
                     Py_ssize_t* place, tuple others) except -1
    cdef int _pay(self, Py_ssize_t lane, double reward) except -1
    cdef int _rewards(self, EnvLanes env, Py_ssize_t env_index, object rewards, tuple others) except -1
    cdef int _flags(self, EnvLanes env, Py_ssize_t env_index, object flags, int bit, bint required) except -1
    cdef int _observations(self, EnvLanes env, Py_ssize_t env_index, object obs, int all_done, lane_t env_t,
                           object terminateds, object truncateds) except -1
    cdef Py_ssize_t _observation(self, EnvLanes env, Py_ssize_t env_index, object agent_id, object value,
                                 Py_ssize_t lane, int all_done, lane_t env_t, Py_ssize_t* place,
                                 object terminateds, object truncateds) except -2
    cdef bint _append_quickly(self, Py_ssize_t lane, lane_t env_t, PyObject* value) except -1
    cdef int _append(self, Py_ssize_t lane, lane_t env_t, object value) except -1
    cdef int _add_row(self, ModuleRows rows, Py_ssize_t lane, lane_t env_t) except -1
    cdef int _finalize(self, Py_ssize_t lane, object value, lane_t env_t) except -1
    cdef int _close_lanes(self, EnvLanes env, Py_ssize_t env_index, int all_done) except -1
    cdef int _infos(self, EnvLanes env, Py_ssize_t env_index, object infos) except -1
    cdef int _info(self, EnvLanes env, Py_ssize_t env_index, object agent_id, object info,
                   Py_ssize_t* place) except -1

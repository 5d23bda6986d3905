from typedefs cimport lane_t


cdef class EnvLanes:
    cdef readonly dict lane_of              # agent id -> lane
    cdef public list infos                  # (env_t, lane or -1 for __common__, info), where not empty
    cdef public lane_t env_t                # env steps since reset
    cdef readonly Py_ssize_t n_steps        # that the env has ever made
    cdef readonly Py_ssize_t n_acting
    cdef public bint is_whole               # whether all is on record that came with env_t
    cdef public int all_done                # flags of `__all__`, as of then
    cdef size_t[::1] seen_keys, seen_values # scratch: addresses in the dict being read
    cdef Py_ssize_t n_held                  # so many of these are owned; 0: they are borrowed
    cdef size_t[::1] keys, next_keys        # addresses of the id objects, which the lane table keeps alive
    cdef lane_t[::1] lanes, next_lanes
    cdef public lane_t[::1] order           # places in the next observation dicts to write, so ordered; None: all
    cpdef clear(self)
    cdef int _grow(self, Py_ssize_t capacity) except -1
    cdef Py_ssize_t see(self, object obs) except -1
    cdef int hold(self, Py_ssize_t n) except -1
    cdef int let_go(self) except -1

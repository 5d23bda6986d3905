from typedefs cimport lane_t


cdef class EnvLanes:
    cdef readonly dict lane_of              # agent id -> lane
    cdef public list infos                  # (env_t, lane or -1 for __common__, info), unless empty
    cdef public lane_t env_t                # env steps since reset
    cdef readonly Py_ssize_t n_steps        # env steps since the env was created
    cdef readonly Py_ssize_t n_acting
    cdef public bint is_complete            # True if all results of step env_t are recorded
    cdef public int all_done                # `__all__` flags of step env_t
    cdef size_t[::1] seen_keys, seen_values # scratch: addresses in the dict being read
    cdef Py_ssize_t n_held                  # number of addresses that are owned; 0 if borrowed
    cdef size_t[::1] keys, next_keys        # addresses of id objects, which the lane table keeps alive
    cdef lane_t[::1] lanes, next_lanes
    cdef public lane_t[::1] order           # which entries of the next observation dicts to write, in order; None: all
    cpdef clear(self)
    cdef int _grow(self, Py_ssize_t capacity) except -1
    cdef Py_ssize_t see(self, object obs) except -1
    cdef int hold(self, Py_ssize_t n) except -1
    cdef int let_go(self) except -1

from typedefs cimport lane_t


cpdef object private_copy(object info, Py_ssize_t env_index, object agent_id, lane_t env_t)
cdef dict copied_dict(dict info, copy)
cdef double as_double(object value, Py_ssize_t env_index, object agent_id, lane_t env_t) except? -1.0
cdef bint is_true(object flag, Py_ssize_t env_index, object agent_id, lane_t env_t, int bit) except -1

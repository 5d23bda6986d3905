from typedefs cimport lane_t, row_t


cdef class ModuleRows:
    cdef public Py_ssize_t n
    cdef public Py_ssize_t n_finals
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t final_capacity
    cdef list leaves                        # of LeafRows
    cdef list final_leaves
    cdef lane_t[::1] lane_R
    cdef row_t[::1] prev_R                  # previous row of the same lane, or -1
    cdef lane_t[::1] env_t_R
    cdef double[::1] reward_R
    cdef row_t[::1] final_prev_F            # the lane's last row
    cdef row_t[::1] final_at_F              # number of rows when it arrived; -1: none, the last row is repeated

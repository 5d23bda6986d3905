"""The rows of one module, as compiled code writes them."""
cimport numpy as cnp

from typedefs cimport lane_t, row_t

from fastmarl.core.native._leaf_rows cimport LeafRows

cnp.import_array()


cdef class ModuleRows:
    """The rows of one module for the scatter: `n` written so far, of `capacity`.

    `finals` are last observations, upon which no agent acts. They are kept apart, so that rows are just the
    module's input.
    """
    def bind(self, list leaves, lane_t[::1] lane_R, row_t[::1] prev_R, lane_t[::1] env_t_R, double[::1] reward_R):
        """Bind arrays of equal lengths, new or the same; `n` stays."""
        cdef Py_ssize_t capacity = lane_R.shape[0]
        if not capacity == prev_R.shape[0] == env_t_R.shape[0] == reward_R.shape[0]:
            raise ValueError("arrays of one block have different lengths")
        _check_leaves(leaves, capacity)
        self.leaves = leaves
        self.lane_R = lane_R
        self.prev_R = prev_R
        self.env_t_R = env_t_R
        self.reward_R = reward_R
        self.capacity = capacity

    def bind_finals(self, list leaves, row_t[::1] final_prev_F, row_t[::1] final_at_F):
        """Bind arrays of last observations."""
        cdef Py_ssize_t capacity = final_prev_F.shape[0]
        if capacity != final_at_F.shape[0]:
            raise ValueError("arrays of one block have different lengths")
        _check_leaves(leaves, capacity)
        self.final_leaves = leaves
        self.final_prev_F = final_prev_F
        self.final_at_F = final_at_F
        self.final_capacity = capacity


cdef int _check_leaves(list leaves, Py_ssize_t capacity) except -1:
    for leaf in leaves:
        if cnp.PyArray_DIM((<LeafRows?>leaf).array, 0) != capacity:
            raise ValueError("leaves of one block have different lengths")
    return 0

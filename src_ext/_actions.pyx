"""Conversion of modules' actions to the action dicts of envs.

Every action is a private copy of the Python type that its space promises: an int for Discrete, an array of its own
for array spaces. An env that changes it does not change the record.
"""
cimport numpy as cnp
from libc.string cimport memcpy

from typedefs cimport lane_t, row_t

from fastmarl.core.native._env_lanes cimport EnvLanes

cnp.import_array()


cdef class ModuleActions:
    """One module's actions in the current tick, for its rows from `first_row` on, as arrays or as values."""
    cdef Py_ssize_t first_row
    cdef cnp.ndarray arrays                 # [n, *shape] of an array space
    cdef list values                        # Python values, for other spaces

    def set_arrays(self, Py_ssize_t first_row, cnp.ndarray arrays):
        """Set the actions of an array space.

        Args:
            first_row: first row.
            arrays: [n, *shape], C-contiguous, kept by reference until the next call.
        """
        self.first_row, self.arrays, self.values = first_row, arrays, None

    def set_values(self, Py_ssize_t first_row, list values):
        """Set actions as `n` objects, which are passed on unchanged."""
        self.first_row, self.arrays, self.values = first_row, None, values

    cdef object action(self, Py_ssize_t row):
        cdef Py_ssize_t i = row - self.first_row
        return self.values[i] if self.arrays is None else _copied_row(self.arrays, i)


cdef class ActionDicts:
    """Makes the dict for each env's step().

    Args:
        table: the LaneTable.
        modules: list of ModuleActions, by module index.
    """
    cdef object __weakref__                 # the table's, which this one holds
    cdef object table
    cdef readonly list modules              # of ModuleActions
    cdef const lane_t[::1] module_L
    cdef const row_t[::1] row_L
    cdef list agent_ids

    def __init__(self, table, list modules):
        self.table = table
        self.modules = modules
        table.readers.add(self)
        self.bind_lanes()

    def bind_lanes(self):
        """Bind the arrays of the table, after they have moved."""
        self.module_L = self.table.module_L
        self.row_L = self.table.row_L
        self.agent_ids = self.table.agent_ids

    def of(self, EnvLanes env):
        """Return the actions of all agents in the env's last observation dict, in its order."""
        cdef Py_ssize_t i, lane
        cdef dict actions = {}
        for i in range(env.n_acting):
            lane = env.lanes[i]
            actions[self.agent_ids[lane]] = (<ModuleActions>self.modules[self.module_L[lane]]).action(self.row_L[lane])
        return actions

    def by_module(self, list order):
        """Return the dicts of all envs, with agents grouped by module in the order of module indices in `order`."""
        return [self._by_module(<EnvLanes>env, order) for env in self.table.envs]

    cdef dict _by_module(self, EnvLanes env, list order):
        cdef Py_ssize_t i, lane, module
        cdef dict actions = {}
        for module in order:
            for i in range(env.n_acting):
                lane = env.lanes[i]
                if self.module_L[lane] == module:
                    actions[self.agent_ids[lane]] = (<ModuleActions>self.modules[module]).action(self.row_L[lane])
        return actions


cdef object _copied_row(cnp.ndarray arrays, Py_ssize_t i):
    if cnp.PyArray_ISBYTESWAPPED(arrays):
        return arrays[i].copy()
    cdef cnp.ndarray row = cnp.PyArray_EMPTY(cnp.PyArray_NDIM(arrays) - 1, cnp.PyArray_DIMS(arrays) + 1,
                                             cnp.PyArray_TYPE(arrays), 0)
    memcpy(cnp.PyArray_DATA(row), cnp.PyArray_BYTES(arrays) + i * cnp.PyArray_NBYTES(row),
           cnp.PyArray_NBYTES(row))
    return row

"""Compiled parts of a tick of a batch of envs: prepares arrays, places actions, records ordinary steps.

Axes in names: P position in the group's arrays (env * number of agents + agent); E env, L lane, R row.
"""
cimport numpy as cnp
from libc.math cimport isfinite
from libc.string cimport memcpy, memset

from typedefs cimport flag_t, lane_t, row_t

from fastmarl.core.native._finite import first_outside
from fastmarl.core.native._env_lanes cimport EnvLanes
from fastmarl.core.native._leaf_rows cimport LeafRows
from fastmarl.core.native._module_rows cimport ModuleRows

cnp.import_array()


cdef class GroupSteps:
    """The arrays of a group: prepares them for each step, takes its actions, and records it if it is ordinary.

    Args:
        envs: EnvLanes of the batch's envs.
        lane_P, module_P: int32, -1 without a lane.
        reward_P: float64, rewards of a step.
        terminated_P, truncated_P, present_P: bool as uint8.
        over: uint8 [2, E], flags of whole episodes: terminated, truncated.
        env_t_E: int32, env steps.
        all_done_E: uint8, flags of the last step.
        actions: arrays [P, ...] of the leaves of actions; C-contiguous, without objects.
        ranges: for each leaf, (least, most) of its integers, see `first_outside()`; None: any value.
        first_position: the group's first position, counted over all groups.

    Attributes:
        modules: those that have lanes in the group.
        sources: by module, the arrays [P, ...] of observations in the order of the module's leaves. Steps with modules
            that are missing here are not recorded.
    """
    cdef public list modules
    cdef readonly dict sources
    cdef list _envs, _actions, _ranges
    cdef const lane_t[::1] _lane_P, _module_P
    cdef double[::1] _reward_P
    cdef flag_t[::1] _terminated_P, _truncated_P, _present_P
    cdef flag_t[:, ::1] _over
    cdef lane_t[::1] _env_t_E
    cdef flag_t[::1] _all_done_E
    cdef Py_ssize_t _n_agents, _first_position

    def __init__(self, list envs, lane_P, module_P, reward_P, terminated_P, truncated_P, present_P, over, env_t_E,
                 all_done_E, list actions, list ranges, Py_ssize_t first_position):
        self._envs, self._lane_P, self._module_P, self._reward_P = envs, lane_P, module_P, reward_P
        self._terminated_P, self._truncated_P, self._present_P = terminated_P, truncated_P, present_P
        self._over, self._env_t_E, self._all_done_E = over, env_t_E, all_done_E
        self._actions, self._ranges, self._first_position = actions, ranges, first_position
        self.modules, self.sources = [], {}
        self._n_agents = len(lane_P) // len(envs)
        lengths = {len(array) for array in (lane_P, module_P, reward_P, terminated_P, truncated_P, present_P, *actions)}
        if (lengths != {self._n_agents * len(envs)}
                or not len(env_t_E) == len(all_done_E) == self._over.shape[1] == len(envs)):
            raise ValueError("the group's arrays have different lengths")

    def begin(self):
        """Prepare the arrays for an env: no action, reward or end; agents with a lane present."""
        cdef Py_ssize_t p, e
        for array in self._actions:
            memset(cnp.PyArray_DATA(<cnp.ndarray?>array), 0, cnp.PyArray_NBYTES(<cnp.ndarray>array))
        for p in range(self._lane_P.shape[0]):
            self._reward_P[p] = 0
            self._terminated_P[p] = self._truncated_P[p] = 0
            self._present_P[p] = self._lane_P[p] >= 0
        for e in range(self._over.shape[1]):
            self._over[0, e] = self._over[1, e] = 0

    def put(self, list values not None, cnp.ndarray lane_R not None, Py_ssize_t first, cnp.ndarray place_L not None):
        """Put actions where an env expects them and return True; return False if they don't fit, with no change.

        Args:
            values: arrays [n, ...], one for each leaf, of the rows from `first` on.
            lane_R, place_L: see `put_rows()`.
        """
        cdef Py_ssize_t i
        if len(values) != len(self._actions):
            return False
        for i in range(len(values)):
            if not _has_rows_of(<cnp.ndarray?>values[i], <cnp.ndarray>self._actions[i]):
                return False
            ranges = self._ranges[i]
            if ranges is not None and first_outside(values[i], ranges[0], ranges[1]) >= 0:
                return False
        for i in range(len(values)):
            _put_rows(<cnp.ndarray>values[i], lane_R, first, place_L, self._first_position,
                      <cnp.ndarray>self._actions[i])
        return True

    cdef bint _is_ordinary(self, list rows, Py_ssize_t n_batch, const row_t *row_L, const flag_t *done_L) except -1:
        """Return True if each agent takes part, none ends, and its module has sources and room for `n_batch` rows."""
        cdef Py_ssize_t p, e
        cdef lane_t lane
        for e in range(self._over.shape[1]):
            if self._over[0, e] or self._over[1, e]:
                return False
        for p in range(self._lane_P.shape[0]):
            lane = self._lane_P[p]
            if lane < 0 or self._present_P[p] == 0 or self._terminated_P[p] != 0 or self._truncated_P[p] != 0:
                return False
            if not isfinite(self._reward_P[p]) or done_L[lane] or row_L[lane] < 0:
                return False
        for module in self.modules:
            sources = self.sources.get(module)
            if sources is None or not self._fits(rows[module], sources, n_batch):
                return False
        return True

    cdef bint _fits(self, ModuleRows rows, list sources, Py_ssize_t n_rows) except -1:
        """Return True if there is room for the rows; raise ValueError unless sources have rows of the leaves' sizes."""
        cdef Py_ssize_t i, n = self._lane_P.shape[0]
        cdef size_t row_bytes
        cdef cnp.ndarray source
        for i in range(len(rows.leaves)):
            row_bytes, source = (<LeafRows>rows.leaves[i]).row_bytes, <cnp.ndarray?>sources[i]
            if <size_t>cnp.PyArray_NBYTES(source) != n * row_bytes or not cnp.PyArray_IS_C_CONTIGUOUS(source):
                raise ValueError(f"a row of {row_bytes} bytes can't take {(<object>source).dtype} "
                                 f"{(<object>source).shape}")
        return rows.n + n_rows <= rows.capacity

    cdef int _record(self, lane_t module, ModuleRows rows, list sources, row_t *row_L, lane_t *count_L) except -1:
        """Record the ordinary step of a module's agents."""
        cdef Py_ssize_t p, i, row = rows.n
        cdef lane_t lane
        for i in range(len(rows.leaves)):
            self._copy(module, <LeafRows>rows.leaves[i], <cnp.ndarray>sources[i], row)
        for p in range(self._lane_P.shape[0]):
            if self._module_P[p] != module:
                continue
            lane = self._lane_P[p]
            rows.reward_R[row_L[lane]] += self._reward_P[p]
            rows.lane_R[row], rows.prev_R[row] = lane, row_L[lane]
            rows.env_t_R[row], rows.reward_R[row] = self._env_t_E[p // self._n_agents] + 1, 0
            row_L[lane] = row
            count_L[lane] += 1
            row += 1
        rows.n = row
        return 0

    cdef int _copy(self, lane_t module, LeafRows leaf, cnp.ndarray source, Py_ssize_t row) except -1:
        """Copy what a module's agents observe to a leaf's rows from `row` on, adjacent agents at once."""
        cdef Py_ssize_t first = 0, end, n = self._lane_P.shape[0], row_bytes = leaf.row_bytes
        cdef const char *observed = <char*>cnp.PyArray_DATA(source)
        if not row_bytes:
            return 0
        while first < n:
            end = first + 1
            if self._module_P[first] == module:
                while end < n and self._module_P[end] == module:
                    end += 1
                memcpy(&leaf.bytes_[row, 0], observed + first * row_bytes, (end - first) * row_bytes)
                row += end - first
            first = end
        return 0

    cdef int _end(self) except -1:
        """Count the step of all envs."""
        cdef Py_ssize_t e
        cdef EnvLanes env
        for e in range(len(self._envs)):
            env = <EnvLanes>self._envs[e]
            self._env_t_E[e] += 1
            self._all_done_E[e] = 0
            env.env_t, env.all_done, env.is_complete = self._env_t_E[e], 0, True
        return 0


cdef bint _has_rows_of(cnp.ndarray values, cnp.ndarray array) noexcept:
    """Return True if both have rows of the same dtype and shape, and are one piece of memory."""
    cdef int axis
    if (not cnp.PyArray_EquivArrTypes(values, array) or not cnp.PyArray_ISCARRAY_RO(values)
            or cnp.PyArray_NDIM(values) != cnp.PyArray_NDIM(array)):
        return False
    for axis in range(1, cnp.PyArray_NDIM(array)):
        if cnp.PyArray_DIM(values, axis) != cnp.PyArray_DIM(array, axis):
            return False
    return True


def record_ordinary(list groups not None, list rows not None, cnp.ndarray row_L not None, cnp.ndarray count_L not None,
                    cnp.ndarray done_L not None):
    """Record an ordinary step of a batch and return True; return False otherwise, with no change.

    A step is ordinary if all agents of all groups take part and none ends.

    Args:
        groups: GroupSteps of all groups of the batch.
        rows: ModuleRows by module.
        row_L, count_L, done_L: int64, int32 and uint8, of the lane table.
    """
    cdef Py_ssize_t n_batch = 0
    cdef GroupSteps group
    if (cnp.PyArray_TYPE(row_L) != cnp.NPY_INT64 or cnp.PyArray_TYPE(count_L) != cnp.NPY_INT32
            or cnp.PyArray_TYPE(done_L) != cnp.NPY_UINT8):
        raise ValueError(f"expected int64, int32 and uint8, got {row_L.dtype}, {count_L.dtype} and {done_L.dtype}")
    cdef row_t *rows_L = <row_t*>cnp.PyArray_DATA(row_L)
    for group in groups:
        n_batch += group._lane_P.shape[0]
    for group in groups:
        if not group._is_ordinary(rows, n_batch, rows_L, <flag_t*>cnp.PyArray_DATA(done_L)):
            return False
    for group in groups:
        for module in group.modules:
            group._record(module, rows[module], group.sources[module], rows_L, <lane_t*>cnp.PyArray_DATA(count_L))
    (<GroupSteps>groups[0])._end()
    return True


def put_rows(cnp.ndarray values not None, cnp.ndarray lane_R not None, Py_ssize_t first, cnp.ndarray place_L not None,
             Py_ssize_t first_position, cnp.ndarray out not None):
    """Write the outputs of rows to the positions of their lanes in a group's array.

    Args:
        values: [n, ...], of the rows from `first` on; C-contiguous, without objects.
        lane_R: int32, lane of each row.
        place_L: int32, position of each lane, counted over all groups.
        first_position: the group's first position; lanes of other groups are skipped.
        out: [P, ...], of the dtype and shape of a row of `values`; C-contiguous.
    """
    _put_rows(values, lane_R, first, place_L, first_position, out)


cdef int _put_rows(cnp.ndarray values, cnp.ndarray lane_R, Py_ssize_t first, cnp.ndarray place_L,
                   Py_ssize_t first_position, cnp.ndarray out) except -1:
    cdef Py_ssize_t n = len(values), n_places = len(place_L), n_positions = len(out), row_bytes, i, position
    cdef lane_t lane
    if not n or not n_positions:
        return 0
    row_bytes = cnp.PyArray_NBYTES(out) // n_positions
    if (cnp.PyArray_TYPE(lane_R) != cnp.NPY_INT32 or cnp.PyArray_TYPE(place_L) != cnp.NPY_INT32
            or not cnp.PyArray_IS_C_CONTIGUOUS(values) or not cnp.PyArray_IS_C_CONTIGUOUS(out)
            or cnp.PyArray_NBYTES(values) != n * row_bytes or not 0 <= first <= len(lane_R) - n):
        raise ValueError(f"{n} rows from {first} of {len(lane_R)} do not fit: "
                         f"{(<object>values).dtype} {(<object>values).shape}, {(<object>out).shape}")
    cdef lane_t *lanes = <lane_t*>cnp.PyArray_DATA(lane_R) + first
    cdef lane_t *places = <lane_t*>cnp.PyArray_DATA(place_L)
    cdef char *sources = <char*>cnp.PyArray_DATA(values)
    cdef char *targets = <char*>cnp.PyArray_DATA(out)
    for i in range(n):
        lane = lanes[i]
        if not 0 <= lane < n_places:
            raise IndexError(f"there is no lane {lane} among {n_places}")
        position = places[lane] - first_position
        if 0 <= position < n_positions:
            memcpy(targets + position * row_bytes, sources + i * row_bytes, row_bytes)
    return 0

"""Compiled parts of a tick of a batch of envs: prepares arrays, places actions, records ordinary steps.

Axes in names: P position in the group's arrays (env * number of agents + agent); E env, L lane, R row.
"""
cimport numpy as cnp
from libc.math cimport isfinite
from libc.string cimport memcpy

from typedefs cimport flag_t, lane_t, row_t

from fastmarl.core.native._env_lanes cimport EnvLanes
from fastmarl.core.native._module_rows cimport ModuleRows

cnp.import_array()


cdef class GroupSteps:
    """Prepares the arrays of a group for each step, and records ordinary ones: all agents take part, and none ends.

    Args:
        envs: EnvLanes of the batch's envs.
        lane_P: int32, -1 without a lane.
        reward_P: float64, rewards of a step.
        terminated_P, truncated_P, present_P: bool as uint8.
        over: uint8 [2, E], flags of whole episodes: terminated, truncated.
        env_t_E: int32, env steps.
        all_done_E: uint8, flags of the last step.
    """
    cdef list _envs
    cdef const lane_t[::1] _lane_P
    cdef double[::1] _reward_P
    cdef flag_t[::1] _terminated_P, _truncated_P, _present_P
    cdef const flag_t[:, ::1] _over
    cdef lane_t[::1] _env_t_E
    cdef flag_t[::1] _all_done_E
    cdef Py_ssize_t _n_agents

    def __init__(self, list envs, lane_P, reward_P, terminated_P, truncated_P, present_P, over, env_t_E, all_done_E):
        self._envs, self._lane_P, self._reward_P = envs, lane_P, reward_P
        self._terminated_P, self._truncated_P, self._present_P = terminated_P, truncated_P, present_P
        self._over, self._env_t_E, self._all_done_E = over, env_t_E, all_done_E
        self._n_agents = len(lane_P) // len(envs)
        if not (len(lane_P) == len(reward_P) == len(terminated_P) == len(truncated_P) == len(present_P)
                == self._n_agents * len(envs) and len(env_t_E) == len(all_done_E) == self._over.shape[1] == len(envs)):
            raise ValueError("the group's arrays have different lengths")

    def begin(self):
        """Prepare the arrays for an env: no reward, no agent ended, agents with a lane present."""
        cdef Py_ssize_t p
        for p in range(self._lane_P.shape[0]):
            self._reward_P[p] = 0
            self._terminated_P[p] = self._truncated_P[p] = 0
            self._present_P[p] = self._lane_P[p] >= 0

    def record_ordinary(self, ModuleRows rows not None, cnp.ndarray row_L not None, cnp.ndarray count_L not None,
                        cnp.ndarray done_L not None):
        """Record an ordinary step of a batch's only group and return True; return False otherwise, with no change.

        Args:
            rows: of the group's only module; the step's observations are in the next ones.
            row_L, count_L, done_L: int64, int32 and uint8, of the lane table.
        """
        cdef Py_ssize_t n = self._lane_P.shape[0], p, e, row = rows.n
        cdef lane_t lane
        cdef EnvLanes env
        if (cnp.PyArray_TYPE(row_L) != cnp.NPY_INT64 or cnp.PyArray_TYPE(count_L) != cnp.NPY_INT32
                or cnp.PyArray_TYPE(done_L) != cnp.NPY_UINT8):
            raise ValueError(f"expected int64, int32 and uint8, got {row_L.dtype}, {count_L.dtype} and {done_L.dtype}")
        cdef row_t *rows_L = <row_t*>cnp.PyArray_DATA(row_L)
        cdef lane_t *counts_L = <lane_t*>cnp.PyArray_DATA(count_L)
        cdef flag_t *dones_L = <flag_t*>cnp.PyArray_DATA(done_L)
        if not self._is_ordinary(rows, rows_L, dones_L):
            return False
        for p in range(n):
            lane = self._lane_P[p]
            rows.reward_R[rows_L[lane]] += self._reward_P[p]
            rows.lane_R[row + p], rows.prev_R[row + p] = lane, rows_L[lane]
            rows.env_t_R[row + p], rows.reward_R[row + p] = self._env_t_E[p // self._n_agents] + 1, 0
            rows_L[lane] = row + p
            counts_L[lane] += 1
        rows.n += n
        for e in range(len(self._envs)):
            env = <EnvLanes>self._envs[e]
            self._env_t_E[e] += 1
            self._all_done_E[e] = 0
            env.env_t, env.all_done, env.is_complete = self._env_t_E[e], 0, True
        return True

    cdef bint _is_ordinary(self, ModuleRows rows, const row_t *row_L, const flag_t *done_L) noexcept:
        cdef Py_ssize_t p, e
        cdef lane_t lane
        if rows.n + self._lane_P.shape[0] > rows.capacity:
            return False
        for e in range(self._over.shape[1]):
            if self._over[0, e] or self._over[1, e]:
                return False
        for p in range(self._lane_P.shape[0]):
            lane = self._lane_P[p]
            if lane < 0 or self._present_P[p] == 0 or self._terminated_P[p] != 0 or self._truncated_P[p] != 0:
                return False
            if not isfinite(self._reward_P[p]) or done_L[lane] or row_L[lane] < 0:
                return False
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
    cdef Py_ssize_t n = len(values), n_places = len(place_L), n_positions = len(out), row_bytes, i, position
    cdef lane_t lane
    if not n or not n_positions:
        return
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

"""Ordinary steps of a batch of envs: all agents take part, and none ends."""
cimport numpy as cnp
from libc.math cimport isfinite

from typedefs cimport flag_t, lane_t, row_t

from fastmarl.core.native._env_lanes cimport EnvLanes
from fastmarl.core.native._module_rows cimport ModuleRows

cnp.import_array()


cdef class OrdinarySteps:
    """Records such steps of one group whose observations already lie in the rows of its only module.

    Axes in names: P position in the group's arrays (env * number of agents + agent); E env, L lane.

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
    cdef const double[::1] _reward_P
    cdef const flag_t[::1] _terminated_P, _truncated_P, _present_P
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
            raise ValueError("arrays of one group have different lengths")

    def record(self, ModuleRows rows not None, cnp.ndarray row_L not None, cnp.ndarray count_L not None,
               cnp.ndarray done_L not None):
        """Record the step and return True; return False if it is not ordinary, with nothing changed.

        Args:
            rows: of the module; the step's observations are in the next ones.
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

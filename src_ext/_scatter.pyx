"""Writing the agent dicts of one env's step to the rows of modules' blocks.

An observation is copied once, from the env's array to its place in the block. Envs nearly always name their
agents in the same order with the same key objects, so a key is first compared by identity with the one at the
same place in the step before; only a miss costs a dict look-up.

Subclasses of dict (PettingZoo's envs return defaultdicts) are dicts to the functions of Python's C API.
"""
cimport cython
cimport numpy as cnp
import numpy as np
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.list cimport PyList_GET_ITEM
from cpython.long cimport PyLong_AsLong
from cpython.object cimport PyObject
from libc.math cimport isfinite

from prefetch cimport fastmarl_prefetch
from typedefs cimport FAILED, TERMINATED, TRUNCATED, flag_t, lane_t, row_t

from fastmarl.core.native._env_lanes cimport EnvLanes
from fastmarl.core.native._env_values cimport as_double, is_true, private_copy
from fastmarl.core.native._leaf_rows cimport LeafRows
from fastmarl.core.native._module_rows cimport ModuleRows

from fastmarl.core.native._leaf_rows import UnfitValueError
from fastmarl.core.errors import MultiAgentEnvError, ObservationError, RewardError

cnp.import_array()

cdef enum:
    # Number of entries by which an agent's array is prefetched before it is read. Hundreds of agents exceed the nearest
    # caches, and waiting for each in turn took half of the time.
    AHEAD = 6

cdef str ALL = "__all__"
cdef str COMMON = "__common__"
cdef object NUMPY_FALSE = np.False_


def waiting_places(const row_t[:, ::1] now, list acting_from):
    """Return the lanes in a `Scatter.lanes_now()` that have acted and not been observed since.

    Args:
        now: int64 [n, 8].
        acting_from: first row by module that has not been acted upon.
    """
    cdef Py_ssize_t i
    return [i for i in range(now.shape[0]) if now[i, 6] == 0 and now[i, 0] < <row_t>acting_from[now[i, 7]]]


cdef class Scatter:
    """Writes the results of reset() and step() of all envs.

    Args:
        table: the LaneTable; its arrays are read and written here, its methods called for rare events.
        grow: called with (module index, n_rows, n_finals) when a module lacks room; must `bind` larger arrays.
        modules: list of ModuleRows, by module index.
    """
    def __init__(self, table, grow, list modules):
        self.table = table
        self.grow = grow
        self.modules = modules
        self.envs = table.envs
        self.done_lanes = []
        table.readers.add(self)
        self.bind_lanes()

    def bind_lanes(self):
        """Bind the arrays of the table, after they have moved."""
        self.agent_ids = self.table.agent_ids
        self.row_L = self.table.row_L
        self.final_L = self.table.final_L
        self.count_L = self.table.count_L
        self.module_L = self.table.module_L
        self.place_L = self.table.place_L
        self.done_L = self.table.done_L
        self.lookback_L = self.table.lookback_L
        self.end_env_t_L = self.table.end_env_t_L
        self.t_started_L = self.table.t_started_L

    def lanes_now(self, list lanes):
        """Return int64 [len(lanes), 8]: their row, count, lookback, t_started, final, end_env_t, done, module."""
        cdef Py_ssize_t i, lane
        now = np.empty((len(lanes), 8), np.int64)
        cdef row_t[:, ::1] out = now
        for i in range(len(lanes)):
            lane = PyLong_AsLong(lanes[i])
            out[i, 0] = self.row_L[lane]
            out[i, 1] = self.count_L[lane]
            out[i, 2] = self.lookback_L[lane]
            out[i, 3] = self.t_started_L[lane]
            out[i, 4] = self.final_L[lane]
            out[i, 5] = self.end_env_t_L[lane]
            out[i, 6] = self.done_L[lane]
            out[i, 7] = self.module_L[lane]
        return now

    def write_reset(self, Py_ssize_t env_index, obs, infos):
        """Begin an episode: every agent in `obs` gets a lane and its first row."""
        cdef EnvLanes env = <EnvLanes>self.envs[env_index]
        if not (isinstance(obs, dict) and isinstance(infos, dict)):
            raise TypeError("expected dicts")
        env.clear()
        self._observations(env, env_index, obs, 0, 0, {}, {})
        self._infos(env, env_index, infos)
        env.is_complete = True

    def write_step(self, Py_ssize_t env_index, obs, rewards, terminateds, truncateds, infos):
        """Add one step; return the flags of `__all__`: 0, TERMINATED (1), TRUNCATED (2) or both (3).

        Raises:
            MultiAgentEnvError: or a subclass, with env index, agent, env step. The env's episode is then unusable.
            TypeError: an argument is not a dict. Nothing was written.
        """
        cdef EnvLanes env = <EnvLanes>self.envs[env_index]
        cdef int all_done
        if not (isinstance(obs, dict) and isinstance(rewards, dict) and isinstance(terminateds, dict)
                and isinstance(truncateds, dict) and isinstance(infos, dict)):
            raise TypeError("expected dicts")
        env.is_complete = False                                   # until the end: errors and interrupts come between
        env.env_t += 1
        env.n_steps += 1
        self._rewards(env, env_index, rewards, (obs, terminateds, truncateds))
        all_done = self._flags(env, env_index, terminateds, TERMINATED, True)
        all_done |= self._flags(env, env_index, truncateds, TRUNCATED, False)
        self._observations(env, env_index, obs, all_done, env.env_t, terminateds, truncateds)
        self._infos(env, env_index, infos)
        if all_done or self.done_lanes:
            all_done = self._close_lanes(env, env_index, all_done)
        env.all_done, env.is_complete = all_done, True
        return all_done

    cdef Py_ssize_t _lane(self, EnvLanes env, object key, Py_ssize_t* place) except -2:
        """Return the key's lane, or -1. The search begins at `place`, which is advanced."""
        cdef PyObject* found
        cdef Py_ssize_t lane = _lane_at(env, <PyObject*>key, place)
        if lane >= 0:
            return lane
        found = PyDict_GetItemWithError(env.lane_of, key)
        if found == NULL:
            return -1
        lane = PyLong_AsLong(<object>found)
        self._adopt(env, lane, key)
        place[0] = self.place_L[lane] + 1
        return lane

    cdef int _adopt(self, EnvLanes env, Py_ssize_t lane, object key) except -1:
        """Keep this equal id object from now on, so that its address is known if the env uses it again."""
        cdef Py_ssize_t place = self.place_L[lane]
        if type(key) is not type(self.agent_ids[lane]):           # 1 and True: the first one stays
            return 0
        if place < env.n_acting and env.lanes[place] == lane:
            env.keys[place] = <size_t><PyObject*>key
        self.agent_ids[lane] = key
        return 0

    cdef int _rewards(self, EnvLanes env, Py_ssize_t env_index, object rewards, tuple others) except -1:
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t pos = 0, place = 0, lane
        while PyDict_Next(rewards, &pos, &key, &value):          # key and value are borrowed from the dict
            if PyFloat_Check(<object>value) and isfinite(PyFloat_AS_DOUBLE(<object>value)):
                lane = _lane_at(env, key, &place)
                if lane >= 0:
                    self._pay(lane, PyFloat_AS_DOUBLE(<object>value))
                    continue
            agent_id, reward = <object>key, <object>value
            self._reward(env, env_index, agent_id, reward, &place, others)
        return 0

    cdef int _reward(self, EnvLanes env, Py_ssize_t env_index, object agent_id, object value,
                     Py_ssize_t* place, tuple others) except -1:
        """Add a reward of any type, for any agent."""
        cdef double reward = as_double(value, env_index, agent_id, env.env_t)
        cdef Py_ssize_t lane
        if not isfinite(reward):
            raise RewardError(env_index, agent_id, env.env_t, f"expected a finite reward, got {reward}")
        lane = self._lane(env, agent_id, place)
        if lane < 0:
            lane = self.table.lane_for_late_reward(env_index, agent_id, reward, *others)
        if lane >= 0:
            self._pay(lane, reward)
        return 0

    @cython.final
    cdef int _pay(self, Py_ssize_t lane, double reward) except -1:
        (<ModuleRows>self.modules[self.module_L[lane]]).reward_R[self.row_L[lane]] += reward
        return 0

    cdef int _flags(self, EnvLanes env, Py_ssize_t env_index, object flags, int bit, bint required) except -1:
        """Store an agent's own True flags in done_L; return `bit` if `__all__` is True, else 0."""
        cdef PyObject *key
        cdef PyObject *value
        cdef PyObject *found = PyDict_GetItemWithError(flags, ALL)
        cdef Py_ssize_t pos = 0, place = 0, lane
        for_all = False if found == NULL else <object>found
        if found == NULL and required:
            raise MultiAgentEnvError(env_index, None, env.env_t,
                                     "expected the key '__all__' in terminateds, which says whether the episode is "
                                     f"over; got the keys {list(flags)}")
        while PyDict_Next(flags, &pos, &key, &value):
            if <object>value is False or <object>value is NUMPY_FALSE:
                continue
            agent_id, flag = <object>key, <object>value
            if not is_true(flag, env_index, agent_id, env.env_t, bit) or agent_id == ALL:
                continue
            lane = self._lane(env, agent_id, &place)
            if lane < 0:
                self.table.check_known(env_index, agent_id)
                continue
            if not self.done_L[lane]:
                self.done_lanes.append(lane)
            self.done_L[lane] |= bit
        return bit if for_all is not False and is_true(for_all, env_index, ALL, env.env_t, bit) else 0

    cdef int _observations(self, EnvLanes env, Py_ssize_t env_index, object obs, int all_done, lane_t env_t,
                           object terminateds, object truncateds) except -1:
        cdef PyObject *key = NULL
        cdef PyObject *value
        cdef Py_ssize_t place = 0, i, at, lane, n = 0, n_obs = env.see(obs)
        cdef bint reorders = env.order is not None
        cdef Py_ssize_t n_written = env.order.shape[0] if reorders else n_obs
        try:
            for i in range(n_written):
                at = env.order[i] if reorders else i
                if i + AHEAD < n_written:
                    _prefetch_array(<PyObject*>env.seen_values[env.order[i + AHEAD] if reorders else i + AHEAD])
                key, value = <PyObject*>env.seen_keys[at], <PyObject*>env.seen_values[at]
                lane = _lane_at(env, key, &place)
                if lane < 0 or all_done or self.done_L[lane] or not self._append_quickly(lane, env_t, value):
                    env.hold(n_obs)
                    lane = self._observation(env, env_index, <object>key, <object>value, lane, all_done, env_t,
                                             &place, terminateds, truncateds)
                    if lane < 0:                                  # nothing to act upon
                        continue
                env.next_keys[n] = <size_t>PyList_GET_ITEM(self.agent_ids, lane)
                env.next_lanes[n] = <lane_t>lane
                self.place_L[lane] = <lane_t>n
                n += 1
        except UnfitValueError as error:
            raise ObservationError(env_index, <object>key, env_t, f"observation: {error}") from error.__cause__
        finally:
            env.let_go()
        env.keys, env.next_keys = env.next_keys, env.keys
        env.lanes, env.next_lanes = env.next_lanes, env.lanes
        env.n_acting = n
        return 0

    cdef Py_ssize_t _observation(self, EnvLanes env, Py_ssize_t env_index, object agent_id, object value,
                                 Py_ssize_t lane, int all_done, lane_t env_t, Py_ssize_t* place,
                                 object terminateds, object truncateds) except -2:
        """Write an observation of any type, of any agent; return the lane that goes on, or -1."""
        if lane < 0:
            lane = self._lane(env, agent_id, place)
        if lane < 0:
            lane = self.table.join(env_index, agent_id, all_done, terminateds, truncateds)
            if lane < 0:                                          # came and went in one step
                return -1
            self._append(lane, env_t, value)
            if self.table.records[env_index].early_rewards:
                self._pay(lane, self.table.early_reward(env_index, lane))
        elif all_done or self.done_L[lane]:
            self._finalize(lane, value, env_t)
            return -1
        else:
            self._append(lane, env_t, value)
        return lane

    cdef bint _append_quickly(self, Py_ssize_t lane, lane_t env_t, PyObject* value) except -1:
        """Add a row if that runs no Python code; otherwise return False, and change nothing."""
        cdef ModuleRows rows = <ModuleRows>self.modules[self.module_L[lane]]
        if rows.n == rows.capacity:
            return False
        for leaf in rows.leaves:
            if (<LeafRows>leaf).path or not (<LeafRows>leaf).copies(rows.n, <object>value):
                return False
        self._add_row(rows, lane, env_t)
        return True

    cdef int _append(self, Py_ssize_t lane, lane_t env_t, object value) except -1:
        cdef ModuleRows rows = <ModuleRows>self.modules[self.module_L[lane]]
        if rows.n == rows.capacity:
            self.grow(self.module_L[lane], 1, 0)
        for leaf in rows.leaves:
            (<LeafRows>leaf).write(rows.n, value)
        self._add_row(rows, lane, env_t)
        return 0

    @cython.final
    cdef int _add_row(self, ModuleRows rows, Py_ssize_t lane, lane_t env_t) except -1:
        """Register the row that has been written."""
        cdef Py_ssize_t row = rows.n
        rows.lane_R[row] = <lane_t>lane
        rows.prev_R[row] = self.row_L[lane]
        rows.env_t_R[row] = env_t
        rows.reward_R[row] = 0.0
        rows.n = row + 1
        self.row_L[lane] = row
        self.count_L[lane] += 1
        return 0

    cdef int _finalize(self, Py_ssize_t lane, object value, lane_t env_t) except -1:
        """Write the lane's final observation: `value`, or its previous one again if that is missing."""
        cdef ModuleRows rows = <ModuleRows>self.modules[self.module_L[lane]]
        cdef Py_ssize_t i, place = rows.n_finals
        if place == rows.final_capacity:
            self.grow(self.module_L[lane], 0, 1)
        for i in range(len(rows.final_leaves)):
            if value is MISSING:
                (<LeafRows>rows.final_leaves[i]).copy_row(place, <LeafRows>rows.leaves[i], self.row_L[lane])
            else:
                (<LeafRows>rows.final_leaves[i]).write(place, value)
        rows.final_prev_F[place] = self.row_L[lane]
        rows.final_at_F[place] = -1 if value is MISSING else rows.n
        self.end_env_t_L[lane] = env_t
        rows.n_finals = place + 1
        self.final_L[lane] = place
        return 0

    cdef int _close_lanes(self, EnvLanes env, Py_ssize_t env_index, int all_done) except -1:
        """End the lanes that are done; return the flags of `__all__`."""
        cdef Py_ssize_t lane
        lanes = list(env.lane_of.values()) if all_done else self.done_lanes
        for lane in lanes:
            if not self.done_L[lane]:                             # own flags take precedence over those of `__all__`
                self.done_L[lane] = <flag_t>all_done
            if self.final_L[lane] < 0 and self.row_L[lane] >= 0:
                self._finalize(lane, MISSING, env.env_t)
            self.table.finish(env_index, lane, env.env_t)
        self.done_lanes = []
        if all_done:
            env.n_acting = 0
        return all_done

    def interrupt(self, Py_ssize_t env_index):
        """End the env's episode, truncated, at its last step.

        The agents' last observations are final ones: actions upon them had no results and are left out.
        """
        cdef EnvLanes env = <EnvLanes>self.envs[env_index]
        cdef ModuleRows rows
        cdef Py_ssize_t lane, row
        for lane in list(env.lane_of.values()):
            rows = <ModuleRows>self.modules[self.module_L[lane]]
            row = self.row_L[lane]
            if rows.env_t_R[row] == env.env_t:
                self._finalize(lane, MISSING, env.env_t)
                self.table.unattributed_reward += rows.reward_R[row]   # received before the first observation
                rows.reward_R[row] = 0.0
                self.row_L[lane] = rows.prev_R[row]
                self.count_L[lane] -= 1
                self.table.steps_L[lane] -= 1                          # it will be counted with the others
        self._close_lanes(env, env_index, TRUNCATED)
        env.all_done = FAILED | TRUNCATED

    cdef int _infos(self, EnvLanes env, Py_ssize_t env_index, object infos) except -1:
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t pos = 0, place = 0
        while PyDict_Next(infos, &pos, &key, &value):
            fastmarl_prefetch(value)
        pos = 0
        while PyDict_Next(infos, &pos, &key, &value):
            if <object>value is None or type(<object>value) is dict and PyDict_Size(<object>value) == 0:
                continue
            agent_id, info = <object>key, <object>value          # as the dict may change while Python code runs
            self._info(env, env_index, agent_id, info, &place)
        return 0

    cdef int _info(self, EnvLanes env, Py_ssize_t env_index, object agent_id, object info,
                   Py_ssize_t* place) except -1:
        """Store an info that is neither None nor an empty dict."""
        cdef Py_ssize_t lane
        if not isinstance(info, dict):
            raise MultiAgentEnvError(env_index, agent_id, env.env_t,
                                     f"expected a dict as info, got {type(info).__name__}")
        lane = self._lane(env, agent_id, place)
        if lane >= 0 or agent_id == COMMON:                       # otherwise an agent that was never observed
            env.infos.append((env.env_t, lane, private_copy(info, env_index, agent_id, env.env_t)))
        return 0


cdef inline Py_ssize_t _lane_at(EnvLanes env, PyObject* key, Py_ssize_t* place) except -2:
    """Return the lane of this very object if it had the same place in the step before, else -1. Runs no Python code."""
    if place[0] < env.n_acting and env.keys[place[0]] == <size_t>key:
        place[0] += 1
        return env.lanes[place[0] - 1]
    return -1


cdef inline void _prefetch_array(PyObject* value) noexcept:
    if cnp.PyArray_CheckExact(<object>value):
        fastmarl_prefetch(cnp.PyArray_DIMS(<cnp.ndarray>value))
        fastmarl_prefetch(cnp.PyArray_DATA(<cnp.ndarray>value))


cdef object MISSING = object()

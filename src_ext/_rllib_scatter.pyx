"""RLlib's rules for the results of envs, where they differ from those of the standalone runner.

Rewards: RLlib keeps the env's own objects and lets NumPy find one dtype for a list of them, so each sum is stored with
the kind of numbers that were added. Flags: an agent's flags are its own or the episode's, and an episode all of whose
agents are done counts as terminated. Observations keep the dtype that the env gave them.
"""
cimport numpy as cnp
import numpy as np
from cpython.dict cimport PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject, PyObject_IsTrue

from typedefs cimport TERMINATED, flag_t, lane_t

from fastmarl.core.native._leaf_rows cimport LeafRows
from fastmarl.core.native._env_lanes cimport EnvLanes
from fastmarl.core.native._env_values cimport copied_dict
from fastmarl.core.native._module_rows cimport ModuleRows
from fastmarl.core.native._scatter cimport Scatter

from fastmarl.core.native._env_values import kept

cnp.import_array()

cpdef enum Kind:             # type of the numbers summed in a row's reward
    NOTHING = 0              # only zeros: Python's 0.0
    PYTHON_FLOAT = 1
    FLOAT32 = 2
    OTHER = 3                # kept as an object
    FLOAT64 = 4              # NumPy's
    INT = 16                 # Python's; INT + n: the sum of n + 1 of them

cdef enum:
    MOST_INTS = 200

cdef long long LARGEST_INT = 1LL << 53       # ints up to this are exact in a double


cdef class RewardKinds:
    """The kinds of rewards in the rows of one module. `others`: row -> (object, number of env steps added)."""
    cdef unsigned char[::1] kind_R
    cdef readonly dict others

    def __init__(self, kind_R, dict others):
        self.kind_R = kind_R
        self.others = others

    cdef int add(self, ModuleRows rows, Py_ssize_t row, object reward, Py_ssize_t env_t) except -1:
        """Add a reward of env step `env_t` that is not zero, in the arithmetic of its type."""
        if not 0 <= row < self.kind_R.shape[0]:
            raise IndexError(f"there is no row {row} among {self.kind_R.shape[0]}")
        cdef int kind = self.kind_R[row], new
        cdef int overflow = 0
        cdef long long whole = 0
        cdef double value = 0.0
        if PyFloat_CheckExact(reward):
            new, value = PYTHON_FLOAT, PyFloat_AS_DOUBLE(reward)
        elif PyLong_CheckExact(reward):
            whole = PyLong_AsLongLongAndOverflow(reward, &overflow)
            new = INT if not overflow and -LARGEST_INT < whole < LARGEST_INT else OTHER
            value = <double>whole
        elif isinstance(reward, np.float64):
            new, value = FLOAT64, PyFloat_AS_DOUBLE(reward)
        elif isinstance(reward, np.float32):
            new, value = FLOAT32, float(reward)
        else:
            new = OTHER
        if new == INT and kind >= INT and (kind - INT >= MOST_INTS or abs(rows.reward_R[row] + value) >= LARGEST_INT):
            new = OTHER                                            # as ints of any size and number
        if new == OTHER or kind == OTHER:
            return self._add_object(rows, row, reward, env_t - rows.env_t_R[row])
        if kind == NOTHING:
            rows.reward_R[row] = value
            self.kind_R[row] = <unsigned char>new
            return 0
        if new == FLOAT32 and kind != FLOAT64 or kind == FLOAT32 and new != FLOAT64:
            rows.reward_R[row] = <float>(<float>rows.reward_R[row] + <float>value)
            new = FLOAT32
        else:
            rows.reward_R[row] += value
            if new == INT and kind >= INT:
                new = kind + 1
            elif new == FLOAT64 or kind == FLOAT64:
                new = FLOAT64
            else:
                new = PYTHON_FLOAT
        self.kind_R[row] = <unsigned char>new
        return 0

    cdef int _add_object(self, ModuleRows rows, Py_ssize_t row, object reward, Py_ssize_t terms) except -1:
        """Add a reward of another type. `terms`: env steps of the transition so far."""
        cdef int kind = self.kind_R[row]
        cdef Py_ssize_t n = 0
        total = 0.0
        if kind == OTHER:
            total, n = self.others[row]
        elif kind != NOTHING:
            total, n = as_object(rows.reward_R[row], kind), kind - INT + 1 if kind >= INT else 1
        reward = kept(reward)                                      # the env may reuse an array
        if n + 1 < terms:                                          # RLlib adds a float zero for a step without a reward
            total = total + 0.0
        self.others[row] = (reward if kind == NOTHING and terms <= 1 else total + reward, max(n + 1, terms))
        self.kind_R[row] = OTHER
        rows.reward_R[row] = float(np.asarray(self.others[row][0]).sum())
        return 0


def as_object(double value, int kind):
    """Convert a reward to the object that RLlib would hold."""
    if kind == FLOAT32:
        return np.float32(value)
    if kind == FLOAT64:
        return np.float64(value)
    return int(value) if kind >= INT else value


cdef class ExactLeafRows(LeafRows):
    """Rows that take values of exactly this leaf's dtype and shape; others go to `on_unfit(row, whole observation)`."""
    cdef object on_unfit

    def __init__(self, array, path, sizes, on_unfit):
        LeafRows.__init__(self, array, path, sizes)
        self.rounds = False
        self.on_unfit = on_unfit

    cdef int write(self, Py_ssize_t row, object value) except -1:
        part = value
        for step in self.path:
            try:
                part = part[step]
            except (KeyError, IndexError, TypeError):
                self.on_unfit(row, value)
                return 0
        if self.copies(row, part):
            return 0
        if self.is_object:
            self.array[row] = kept(part)
            return 0
        if cnp.PyArray_CheckExact(part):
            if part.dtype == self.array.dtype and part.shape == (<object>self.array).shape[1:]:
                self.array[row] = part
                return 0
        elif self.ndim == 0 and self.type_num == cnp.NPY_INT64 and type(part) in (int, np.int64):
            self.array[row] = part
            return 0
        self.on_unfit(row, value)
        return 0


cdef class RLlibScatter(Scatter):
    """Scatter by RLlib's rules.

    Args:
        table, grow, modules: see Scatter.
        merge_flags: True if an agent's flags are its own or the episode's (RLlib); False if its own take precedence.
    """
    cdef bint merge_flags
    cdef const lane_t[::1] env_L
    cdef list kinds                          # of RewardKinds, by module
    cdef readonly list closed                # lanes ended in the last step
    cdef readonly list unseen                # those of them that ended without an observation
    cdef readonly bint everybody             # True if no agent lives on after the last step that ended some

    def __init__(self, table, grow, list modules, bint merge_flags):
        Scatter.__init__(self, table, grow, modules)
        self.merge_flags = merge_flags
        self.kinds, self.closed, self.unseen = [], [], []

    def bind_lanes(self):
        """Bind the arrays of the table, after they have moved."""
        Scatter.bind_lanes(self)
        self.env_L = self.table.env_L

    def bind_kinds(self, Py_ssize_t module, RewardKinds kinds):
        """Bind the reward kinds of a module, which may be a new one."""
        self.kinds[module:module + 1] = [kinds]

    def acting_modules(self, list acting_from):
        """Return the modules with rows from `acting_from[module]` on, in the order in which these begin in RLlib's
        batch."""
        cdef Py_ssize_t module, first, lane
        cdef ModuleRows rows
        acting = []
        for module in range(len(self.modules)):
            rows, first = <ModuleRows>self.modules[module], acting_from[module]
            if rows.n > first:
                lane = rows.lane_R[first]
                acting.append((self.env_L[lane], self.place_L[lane], module))
        acting.sort()
        return [module for _, _, module in acting]

    cdef int _rewards(self, EnvLanes env, Py_ssize_t env_index, object rewards, tuple others) except -1:
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t pos = 0, place = 0
        agent_id = None
        try:
            while PyDict_Next(rewards, &pos, &key, &value):
                if <object>value is None:
                    continue
                agent_id, reward = <object>key, <object>value     # as the dict may change while Python code runs
                if PyObject_IsTrue(reward):
                    self._reward_of(env, env_index, agent_id, reward, &place)
        except Exception as error:                                # from huge ints, or a reward's own code
            error.add_note(f"fastmarl: reward of env {env_index}, agent {agent_id!r}, env step {env.env_t}")
            raise
        return 0

    cdef int _reward_of(self, EnvLanes env, Py_ssize_t env_index, object agent_id, object reward,
                        Py_ssize_t* place) except -1:
        cdef Py_ssize_t module, lane = self._lane(env, agent_id, place)
        if lane < 0:
            lane = self.table.lane_for_late_reward(env_index, agent_id, reward)
            if lane < 0:
                return 0
        module = self.module_L[lane]
        return (<RewardKinds>self.kinds[module]).add(<ModuleRows>self.modules[module], self.row_L[lane], reward,
                                                     env.env_t)

    cdef int _close_lanes(self, EnvLanes env, Py_ssize_t env_index, int all_done) except -1:
        cdef Py_ssize_t lane
        cdef int own = 0
        live = list(env.lane_of.values())
        self.everybody = True
        for lane in live:
            own |= self.done_L[lane]
            self.everybody = self.everybody and self.done_L[lane] != 0
        if self.everybody and live:
            if self.merge_flags:
                all_done |= TERMINATED
            elif not all_done:
                all_done = own
        if all_done and self.merge_flags:
            for lane in live:
                self.done_L[lane] |= <flag_t>all_done
        self.closed = live if all_done else list(self.done_lanes)
        self.unseen = [lane for lane in self.closed if self.final_L[lane] < 0]
        return Scatter._close_lanes(self, env, env_index, all_done)

    cdef int _info(self, EnvLanes env, Py_ssize_t env_index, object agent_id, object info,
                   Py_ssize_t* place) except -1:
        cdef Py_ssize_t lane
        if PyObject_IsTrue(info):
            lane = self._lane(env, agent_id, place)
            if lane >= 0:
                env.infos.append((env.env_t, lane, copied_dict(info, kept) if type(info) is dict else kept(info)))
        return 0

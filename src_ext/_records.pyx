"""What is known of running episodes beside their rows, and what happens to many of their agents at once."""
cimport numpy as cnp
import numpy as np
from cpython.object cimport PyObject

from typedefs cimport lane_t, row_t

from fastmarl._scatter cimport EnvLanes

cnp.import_array()

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject* container) noexcept

REMEMBERED = 4096  # finished agents of one episode that are told apart from ones never seen
cdef Py_ssize_t MOST = REMEMBERED


cdef class EpisodeRecord:
    """What is known of one env's running episode beside its rows.

    Args:
        env_index: of the env.
        id_: of the episode.
        started_at: time.perf_counter() at its begin.
    """
    cdef public Py_ssize_t env_index
    cdef public str id_
    cdef public double started_at
    cdef public double duration_s           # set at its end
    cdef public Py_ssize_t env_steps        # likewise
    cdef public Py_ssize_t env_t_started    # of the current chunk
    cdef public Py_ssize_t lookback
    cdef public Py_ssize_t env_states_from  # env step of the first recorded global state that the current chunk needs
    cdef public list lanes                  # of the current chunk, in order of appearance
    cdef public tuple joining               # respawned while their former lane is in this chunk: they open the next
    cdef public list ended                  # since the call began
    cdef public dict finished               # agent id -> its ended lane, or -1 once that was returned
    cdef public dict early_rewards          # paid before the first observation
    cdef public object policy_mapping_fn    # the one in force at the reset; None: everybody to one module, ...
    cdef public int only_module             # ... this one
    cdef public dict module_of              # agent id -> module index, where a function has told
    cdef public object opened               # the episode as mapping functions see it
    cdef public dict custom_data
    cdef public dict agent_returns          # of ended lanes
    cdef public dict agent_steps
    cdef public dict module_returns

    def __init__(self, Py_ssize_t env_index, str id_, double started_at):
        self.env_index = env_index
        self.id_ = id_
        self.started_at = started_at
        self.lanes, self.joining, self.ended = [], (), []
        # They hold nothing but numbers. Where thousands of episodes run, the garbage collector looked for cycles in
        # lists such as these for a tenth of the time.
        PyObject_GC_UnTrack(<PyObject*>self.lanes)
        PyObject_GC_UnTrack(<PyObject*>self.ended)
        self.finished, self.early_rewards, self.module_of, self.custom_data = {}, {}, {}, {}
        self.agent_returns, self.agent_steps, self.module_returns = {}, {}, {}

    cdef int add(self, object agent_id, object module, double total, row_t steps) except -1:
        """Add an ended lane's return and steps to the episode's."""
        self.agent_returns[agent_id] = self.agent_returns.get(agent_id, 0.0) + total
        self.agent_steps[agent_id] = self.agent_steps.get(agent_id, 0) + steps
        self.module_returns[module] = self.module_returns.get(module, 0.0) + total
        if len(self.agent_returns) > MOST:
            forgotten = next(iter(self.agent_returns))
            del self.agent_returns[forgotten], self.agent_steps[forgotten]
        return 0


def ids_of(tuple lanes, list agent_ids):
    """The ids of the agents of these lanes."""
    return tuple([agent_ids[lane] for lane in lanes])


def with_new_infos(list envs):
    """Those EnvLanes that have infos of their last step."""
    cdef EnvLanes env
    return [env for env in envs if env.infos and env.infos[len(env.infos) - 1][0] == env.env_t]


def join_all(
    list records,                       # [env]
    list envs,                          # [env] EnvLanes
    list env_indices,                   # whose episodes begin
    const unsigned char[:, ::1] present,  # [env, agent]
    list agents,                        # [agent] their ids
    list free,                          # lanes, enough of them; taken from the end
    list agent_ids,                     # [lane], written
    object module_for,                  # called with (agent id, env index) where the episode has a mapping function
):
    """Lanes for all agents of episodes that begin.

    Returns:
        (lanes, modules): int32, by env, then agent. The lane table's arrays are the caller's to set.
    """
    cdef Py_ssize_t env_index, agent, k = 0, first, n = len(agents)
    cdef EpisodeRecord record
    cdef EnvLanes env
    lanes, modules = np.empty((2, len(env_indices) * n), np.int32)
    cdef lane_t[::1] out_lanes = lanes, out_modules = modules
    for env_index in env_indices:
        record, env = records[env_index], envs[env_index]
        first = k
        for agent in range(n):
            if not present[env_index, agent]:
                continue
            if record.policy_mapping_fn is None:
                out_modules[k] = record.only_module
            else:
                module = record.module_of[agents[agent]] = module_for(agents[agent], env_index)
                out_modules[k] = module
            k += 1
        k = first
        for agent in range(n):
            if present[env_index, agent]:
                lane = free.pop()
                out_lanes[k] = lane
                agent_ids[out_lanes[k]] = agents[agent]
                env.lane_of[agents[agent]] = lane
                record.lanes.append(lane)
                k += 1
    return lanes[:k], modules[:k]


def finish_all(
    list records,                       # [env]
    list envs,                          # [env] EnvLanes
    list agent_ids,                     # [lane]
    const row_t[::1] env_indices,       # of these lanes
    const lane_t[::1] lanes,
):
    """The agents of these lanes have ended; the lane table's arrays are the caller's to set."""
    cdef Py_ssize_t i
    cdef EpisodeRecord record
    cdef EnvLanes env
    for i in range(lanes.shape[0]):
        record, env = records[env_indices[i]], envs[env_indices[i]]
        agent_id, lane = agent_ids[lanes[i]], lanes[i]
        del env.lane_of[agent_id]
        record.finished[agent_id] = lane
        record.ended.append(lane)


def settle_all(
    list records,                       # EpisodeRecords
    list agent_ids,                     # [lane]
    const lane_t[::1] module_L,
    const double[::1] return_L,
    const row_t[::1] steps_L,
):
    """Add what ended lanes were paid, and their steps, to their episodes; these know them no longer.

    Returns:
        Those lanes.
    """
    cdef EpisodeRecord record
    cdef Py_ssize_t lane
    cdef list settled = []
    for record in records:
        for lane in record.ended:
            agent_id = agent_ids[lane]
            record.add(agent_id, module_L[lane], return_L[lane], steps_L[lane])
            if record.finished.get(agent_id) == lane:
                record.finished[agent_id] = -1
        settled += record.ended
        record.ended.clear()
    return settled


def steps_by_agent(list agent_ids, const row_t[::1] actions_L):
    """Agent id -> the sum over its lanes, of those with any action."""
    cdef Py_ssize_t lane
    cdef dict steps = {}
    for lane in range(actions_L.shape[0]):
        if actions_L[lane]:
            agent_id = agent_ids[lane]
            steps[agent_id] = steps.get(agent_id, 0) + actions_L[lane]
    return steps

"""Data of running episodes beside their rows, and changes of many of their agents at once."""
import numpy as np
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from typedefs cimport flag_t, lane_t, row_t

from fastmarl.core.native._env_lanes cimport EnvLanes

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject* container) noexcept
    Py_ssize_t Py_REFCNT(PyObject* instance) noexcept

REMEMBERED = 4096  # number of finished agents of one episode that are distinguished from agents never seen
cdef Py_ssize_t MOST = REMEMBERED


cdef class EpisodeRecord:
    """Data of one env's running episode beside its rows.

    Args:
        env_index: index of the env.
        id_: id of the episode.
        started_at: seconds at its begin, on the clock that times episodes.
    """

    def __init__(self, Py_ssize_t env_index, str id_, double started_at):
        self.lanes, self.ended = [], []
        # These lists hold only numbers. With thousands of episodes, the garbage collector's search for cycles in such
        # lists took a tenth of the time.
        PyObject_GC_UnTrack(<PyObject*>self.lanes)
        PyObject_GC_UnTrack(<PyObject*>self.ended)
        self.finished, self.early_rewards, self.module_of, self.custom_data = {}, {}, {}, {}
        self.agent_returns, self.agent_steps, self.module_returns = {}, {}, {}
        self.begin(env_index, id_, started_at)

    cdef int begin(self, Py_ssize_t env_index, str id_, double started_at) except -1:
        """Become the record of another episode."""
        self.env_index, self.id_, self.started_at = env_index, id_, started_at
        self.env_t_started = self.lookback = self.env_states_from = 0
        self.reset_seed = -1
        self.joining, self.policy_mapping_fn, self.opened = (), None, None
        self.lanes.clear()
        self.ended.clear()
        for numbers in (self.finished, self.early_rewards, self.module_of, self.agent_returns, self.agent_steps,
                        self.module_returns):
            numbers.clear()
        if self.custom_data or Py_REFCNT(<PyObject*>self.custom_data) > 1:
            self.custom_data = {}  # the old one belongs to a chunk
        return 0

    cdef int add(self, object agent_id, object module, double total, row_t steps) except -1:
        """Add an ended lane's return and steps to the episode's."""
        self.agent_returns[agent_id] = self.agent_returns.get(agent_id, 0.0) + total
        self.agent_steps[agent_id] = self.agent_steps.get(agent_id, 0) + steps
        self.module_returns[module] = self.module_returns.get(module, 0.0) + total
        if len(self.agent_returns) > MOST:
            forgotten = next(iter(self.agent_returns))
            del self.agent_returns[forgotten], self.agent_steps[forgotten]
        return 0


cdef uint64_t NUMBER_BITS = (1ULL << 48) - 1


def episode_id(str run_id, uint64_t number):
    """Make an id of 32 hexadecimal digits, the last 20 of which are `run_id`.

    The others are the number's lowest 48 bits, mixed so that ids with adjacent numbers differ from the first digits on.
    All steps are reversible: different numbers have different digits.
    """
    number &= NUMBER_BITS
    for _ in range(2):
        number = ((number ^ (number >> 24)) * 0x9E3779B97F4A7C15ULL) & NUMBER_BITS
    number ^= number >> 24
    return f"{number:012x}{run_id}"


def open_all(
    list records,                       # [env]
    list envs,                          # [env] EnvLanes
    list env_indices,                   # envs whose episodes begin
    list spare,                         # records of former episodes; taken from the end
    str run_id,
    uint64_t number,                    # number in the first episode's id
    double now,
):
    """Open new episodes in these envs."""
    cdef EnvLanes env
    cdef EpisodeRecord record
    cdef Py_ssize_t env_index
    for env_index in env_indices:
        env = envs[env_index]
        env.clear()
        record = spare.pop() if spare else None
        if record is None or Py_REFCNT(<PyObject*>record) > 1:  # otherwise another holder identifies an episode by it
            record = EpisodeRecord(env_index, episode_id(run_id, number), now)
        else:
            record.begin(env_index, episode_id(run_id, number), now)
        records[env_index] = record
        number += 1


def map_all(list records, list env_indices, object policy_mapping_fn, int only_module):
    """Set the mapping function, or the only module, of these envs' episodes."""
    cdef EpisodeRecord record
    for env_index in env_indices:
        record = records[env_index]
        record.policy_mapping_fn, record.only_module = policy_mapping_fn, only_module


def next_chunks(list records, list envs, const lane_t[::1] lookback_E, const flag_t[::1] done_L):
    """Continue the episodes in new chunks, with their live lanes."""
    cdef EpisodeRecord record
    cdef EnvLanes env
    for record in records:
        env = envs[record.env_index]
        record.env_t_started = env.env_t
        record.lookback = min(lookback_E[record.env_index], env.env_t)
        record.lanes[:] = [lane for lane in record.lanes if not done_L[<Py_ssize_t>lane]]


def with_new_infos(list records, list envs):
    """Return the EnvLanes of running episodes that have infos of their last step.

    Envs without an episode are skipped, because their lanes may belong to others by now.
    """
    cdef EnvLanes env
    cdef list found = []
    for record, env in zip(records, envs):
        if record is not None and env.infos and env.infos[len(env.infos) - 1][0] == env.env_t:
            found.append(env)
    return found


def join_all(
    list records,                       # [env]
    list envs,                          # [env] EnvLanes
    list env_indices,                   # envs whose episodes begin
    const unsigned char[:, ::1] present,  # [one of these envs, agent]
    list agents,                        # [agent] ids
    list free,                          # enough free lanes; taken from the end
    list agent_ids,                     # [lane], written
    object module_for,                  # called with (agent id, env index) if the episode has a mapping function
):
    """Create lanes for all agents of episodes that begin.

    Returns:
        (lanes, modules): int32, by env, then agent. The caller sets the lane table's arrays.
    """
    cdef Py_ssize_t i, env_index, agent, k = 0, first, n = len(agents)
    cdef EpisodeRecord record
    cdef EnvLanes env
    lanes, modules = np.empty((2, len(env_indices) * n), np.int32)
    cdef lane_t[::1] out_lanes = lanes, out_modules = modules
    for i in range(len(env_indices)):
        env_index = env_indices[i]
        record, env = records[env_index], envs[env_index]
        first = k
        for agent in range(n):
            if not present[i, agent]:
                continue
            if record.policy_mapping_fn is None:
                out_modules[k] = record.only_module
            else:
                module = record.module_of[agents[agent]] = module_for(agents[agent], env_index)
                out_modules[k] = module
            k += 1
        k = first
        for agent in range(n):
            if present[i, agent]:
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
    const row_t[::1] env_indices,       # envs of these lanes
    const lane_t[::1] lanes,
):
    """Record that the agents of these lanes have ended; the caller sets the lane table's arrays."""
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
    """Add the rewards and steps of ended lanes to their episodes, which then forget these lanes.

    Returns:
        These lanes.
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
    """Return the sum over each agent's lanes, by agent id, of agents with any action."""
    cdef Py_ssize_t lane
    cdef dict steps = {}
    for lane in range(actions_L.shape[0]):
        if actions_L[lane]:
            agent_id = agent_ids[lane]
            steps[agent_id] = steps.get(agent_id, 0) + actions_L[lane]
    return steps


def note_reset_seeds(
    list records,                       # [env]
    list seeds,                         # [env], None if the reset had no seed
    list env_indices,                   # envs that have been reset
):
    """Store the seeds of resets in the records of the new episodes."""
    cdef Py_ssize_t env_index
    for env_index in env_indices:
        seed = seeds[env_index]
        (<EpisodeRecord?>records[env_index]).reset_seed = -1 if seed is None else seed

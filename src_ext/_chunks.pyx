"""Notes of finished chunks, from which episodes are made later: numbers in arrays, for many chunks at once.

Thousands of short episodes may end in one call, and most of them may never be read one by one.
"""
cimport numpy as cnp
import numpy as np
from cpython.object cimport PyObject_GenericSetAttr

from typedefs cimport TERMINATED, TRUNCATED, row_t

from fastmarl.core.native._records cimport EpisodeRecord
from fastmarl.core.native._env_lanes cimport EnvLanes

cnp.import_array()

cdef enum:
    N_NUMBERS = 7
    N_LANE_COLUMNS = 8   # of Scatter.lanes_now()
    COUNT = 1
    LOOKBACK = 2
    FINAL = 4
    MODULE = 7

new_tuple = tuple.__new__


cdef class ChunkNotes:
    """Notes of chunks, in the order of their ends.

    Attributes:
        numbers: int64 [capacity, 7]: env index, env_t_started, env_t, lookback, flags of `__all__`, seed of the reset
            or -1, and the number of lanes of all chunks up to and including this one.
        lanes: of all chunks, one after the other.
        ids, durations_s: by chunk.
        own: by chunk, objects that only the chunk needs: (infos as in EnvLanes, custom data, the env's states), or None
            if there are none. Taken with the chunk.
        env_states: states of the chunks that are noted next, by place.
    """
    cdef readonly cnp.ndarray numbers
    cdef row_t[:, ::1] _numbers
    cdef readonly list lanes, ids, durations_s, own
    cdef readonly dict env_states
    cdef Py_ssize_t n_taken
    cdef tuple last_agents

    def __init__(self):
        self.lanes, self.ids, self.durations_s, self.own, self.env_states = [], [], [], [], {}
        self._make_room(16)

    def __len__(self):
        return len(self.ids)

    cdef int _make_room(self, Py_ssize_t capacity) except -1:
        numbers = np.empty((capacity, N_NUMBERS), np.int64)
        numbers[:len(self.ids)] = self.numbers[:len(self.ids)] if self.ids else 0
        self.numbers = self._numbers = numbers
        return 0

    cdef int add(self, EpisodeRecord record, EnvLanes env, int flags, double now) except -1:
        cdef Py_ssize_t place = len(self.ids)
        if place == self._numbers.shape[0]:
            self._make_room(2 * place)
        self.lanes += record.lanes
        self.ids.append(record.id_)
        self.durations_s.append(now - record.started_at)
        self.own.append(self._own(record, env, flags != 0))
        self._numbers[place, 0] = record.env_index
        self._numbers[place, 1] = record.env_t_started
        self._numbers[place, 2] = env.env_t
        self._numbers[place, 3] = record.lookback
        self._numbers[place, 4] = flags
        self._numbers[place, 5] = record.reset_seed
        self._numbers[place, 6] = len(self.lanes)
        return 0

    cdef tuple _own(self, EpisodeRecord record, EnvLanes env, bint is_done):
        states = self.env_states.pop(len(self.own), None) if self.env_states else None
        if is_done and states is None and not env.infos and not record.custom_data and record.opened is None:
            return None
        return env.infos if env.infos else (), record.custom_data, states

    def add_finished(self, list records, list envs, list env_indices, list flags, double now):
        """Note the last chunks of these envs' episodes; return the episodes' records, and clear their places."""
        cdef EpisodeRecord record
        cdef EnvLanes env
        cdef list finished = []
        for env_index, all_done in zip(env_indices, flags):
            record, env = records[env_index], envs[env_index]
            self.add(record, env, all_done, now)
            record.env_steps, record.duration_s = env.env_t, now - record.started_at
            records[env_index] = None
            finished.append(record)
        return finished

    def add_running(self, list records, list envs, list env_indices, double now):
        """Note these envs' chunks in their current form."""
        for env_index in env_indices:
            self.add(records[env_index], envs[env_index], 0, now)

    def take_as(self, type kind):
        """Make an object of class `kind` for each chunk noted since the last call; its slot `_chunk` is (self,
        place, own)."""
        cdef list taken = []
        for place in range(self.n_taken, len(self.ids)):
            later = kind.__new__(kind)
            PyObject_GenericSetAttr(later, "_chunk", (self, place, self.own[place]))
            self.own[place] = None
            taken.append(later)
        self.n_taken = len(self.ids)
        return taken

    def head_of(self, Py_ssize_t place, tuple agent_ids, type kind):
        """Make a `ChunkHead` of the chunk at this place.

        Args:
            agent_ids: by lane.
            kind: the class, whose fields have the order of the values here.
        """
        cdef row_t[::1] numbers = self._numbers[place]
        cdef tuple agents = self._agents(agent_ids, self._first_lane(place), numbers[6])
        return new_tuple(kind, (
            self.ids[place], numbers[1], numbers[2], numbers[3], numbers[4] & TERMINATED != 0,
            numbers[4] & TRUNCATED != 0, self.durations_s[place], agents, None if numbers[5] < 0 else numbers[5],
        ))

    cdef Py_ssize_t _first_lane(self, Py_ssize_t place) noexcept:
        return self._numbers[place - 1, 6] if place else 0

    cdef tuple _agents(self, tuple agent_ids, Py_ssize_t first, Py_ssize_t end):
        """Slice the ids; return the previous tuple if it has the same objects, as in compiled environments."""
        cdef Py_ssize_t i, n = end - first
        cdef tuple last = self.last_agents
        if last is not None and len(last) == n:
            for i in range(n):
                if last[i] is not agent_ids[first + i]:
                    break
            else:
                return last
        self.last_agents = agent_ids[first:end]
        return self.last_agents

    def lanes_of(self, list places, const row_t[:, ::1] columns, tuple agent_ids):
        """Return the times and lanes of the chunks at these places.

        Args:
            columns: int64 [lanes, 8], see `Scatter.lanes_now()`.
            agent_ids: by lane.

        Returns:
            By chunk: int64 [chunks, 2], env_t_started and env_t; int64 [chunks], number of lanes. By lane, chunk
                after chunk:
            list of the agents' ids; int64 [n, 8], columns.
        """
        cdef Py_ssize_t i, place, lane, first, n = 0
        times, n_lanes = np.empty((len(places), 2), np.int64), np.empty(len(places), np.int64)
        cdef row_t[:, ::1] times_E = times
        cdef row_t[::1] n_lanes_E = n_lanes
        for i in range(len(places)):
            place = places[i]
            first = self._first_lane(place)
            times_E[i] = self._numbers[place, 1:3]
            n_lanes_E[i] = self._numbers[place, 6] - first
            n += n_lanes_E[i]
        chosen = np.empty((n, N_LANE_COLUMNS), np.int64)
        cdef row_t[:, ::1] out = chosen
        cdef list chosen_ids = []
        n = 0
        for i in range(len(places)):
            place = places[i]
            first = self._first_lane(place)
            for lane in range(first, self._numbers[place, 6]):
                out[n] = columns[lane]
                chosen_ids.append(agent_ids[lane])
                n += 1
        return times, n_lanes, chosen_ids, chosen


def lanes_with_steps(
    const row_t[:, ::1] columns,
    const row_t[::1] n_lanes,
    list agent_ids,
    list chunk_ids,
    Py_ssize_t first_chunk,
    number_of,
):
    """Select the lanes of chunks that have a step after their lookback, as rows of an `AgentEpisodeTable`.

    Args:
        columns: int64 [m, 8], see `Scatter.lanes_now()`; of one chunk after the other.
        n_lanes: int64, number of lanes by chunk.
        agent_ids: [m].
        chunk_ids: ids by chunk.
        first_chunk: the table's number of the first chunk.
        number_of: converts a module of `columns` to the table's indices of it and of its source; called once for each
            module, in the order in which their lanes come.

    Returns:
        int64 [s, 10]; their agents' ids and their chunks' ids, lists [s].
    """
    cdef Py_ssize_t chunk, lane = 0, end = 0, n = 0, module
    cdef list kept_agents = [], kept_chunks = []
    cdef dict known = {}
    cdef tuple indices
    numbers = np.empty((columns.shape[0], N_LANE_COLUMNS + 2), np.int64)
    cdef row_t[:, ::1] out = numbers
    for chunk in range(n_lanes.shape[0]):
        end += n_lanes[chunk]
        for lane in range(lane, end):
            if columns[lane, COUNT] + (columns[lane, FINAL] >= 0) - 1 <= columns[lane, LOOKBACK]:
                continue
            module = columns[lane, MODULE]
            if module not in known:
                known[module] = number_of(module)
            indices = known[module]
            out[n, :N_LANE_COLUMNS] = columns[lane]
            out[n, MODULE], out[n, MODULE + 1], out[n, MODULE + 2] = indices[0], indices[1], first_chunk + chunk
            kept_agents.append(agent_ids[lane])
            kept_chunks.append(chunk_ids[chunk])
            n += 1
        lane = end
    return numbers[:n], kept_agents, kept_chunks

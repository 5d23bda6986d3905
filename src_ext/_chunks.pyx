"""What chunks of episodes are made of, noted when they are over: numbers in arrays, for many of them at once.

Where episodes are short, thousands end in one call, and nobody may ever look at them one by one.
"""
cimport numpy as cnp
import numpy as np
from cpython.object cimport PyObject_GenericSetAttr

from typedefs cimport row_t

from fastmarl.native._records cimport EpisodeRecord
from fastmarl.native._env_lanes cimport EnvLanes

cnp.import_array()

cdef enum:
    N_NUMBERS = 7


cdef class ChunkNotes:
    """Notes of chunks, in the order of their ends.

    Attributes:
        numbers: int64 [capacity, 7]: env index, env_t_started, env_t, lookback, flags of `__all__`, seed of the reset
            or -1, and the number of lanes up to the end of this chunk's.
        lanes: of all chunks, one after the other.
        ids, durations_s: by chunk.
        own: by chunk, what would be kept alive for others: (infos as in EnvLanes, custom data, the env's states), or
            None if there is nothing. Taken with the chunk.
        env_states: by place, of those that are noted next.
    """
    cdef readonly cnp.ndarray numbers
    cdef row_t[:, ::1] _numbers
    cdef readonly list lanes, ids, durations_s, own
    cdef readonly dict env_states
    cdef Py_ssize_t n_taken

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
        """Note the last chunks of these envs' episodes; returns their records, whose places are cleared."""
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
        """Note these envs' chunks as they are."""
        for env_index in env_indices:
            self.add(records[env_index], envs[env_index], 0, now)

    def take_as(self, type kind):
        """An object of a class for each chunk noted since the last time; its slot `_chunk` is (self, place, own)."""
        cdef list taken = []
        for place in range(self.n_taken, len(self.ids)):
            later = kind.__new__(kind)
            PyObject_GenericSetAttr(later, "_chunk", (self, place, self.own[place]))
            self.own[place] = None
            taken.append(later)
        self.n_taken = len(self.ids)
        return taken

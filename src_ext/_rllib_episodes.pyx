"""RLlib's episode objects, made of the columns of blocks, many at once, by filling slots without their constructors."""
cimport numpy as cnp
import numpy as np
from cpython.exc cimport PyErr_SetInterrupt
from cpython.type cimport PyType_GenericNew
from libc.string cimport memcpy

from rows cimport row_bytes
from typedefs cimport lane_t, row_t

from ray.rllib.env.single_agent_episode import _REWARDS_BOX_SPACE, SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

cnp.import_array()

cdef enum:
    MOST_AXES = 32            # supported by view(); NumPy 2 allows more

cdef str SKIPPED = "S"        # RLlib's mark for env steps in which an agent was not observed


def with_finals(cnp.ndarray rows_of, cnp.ndarray finals_of, const row_t[::1] rows, const row_t[::1] counts,
                const row_t[::1] finals, cnp.ndarray gathered):
    """Write each lane's rows (as `_store.chains` gives them), followed by its final observation if it has one.

    Args:
        rows_of, finals_of: [capacity, *shape], C-contiguous, of the same dtype.
        rows: rows of all lanes, one lane after the other.
        counts, finals: by lane, number of rows, and index of the final observation or -1.
        gathered: [rows and finals, *shape], C-contiguous, of the same dtype. OUT

    Returns:
        gathered.
    """
    cdef Py_ssize_t i, _j, read = 0, written = 0, total = rows.shape[0]
    cdef size_t n_bytes = row_bytes(rows_of)
    for i in range(finals.shape[0]):
        total += finals[i] >= 0
    if cnp.PyArray_DIM(gathered, 0) != total or not cnp.PyArray_ISCARRAY(gathered):
        raise ValueError(f"expected a contiguous array of {total} rows to write to, got {(<object>gathered).shape}")
    if rows_of.dtype == object:
        for i in range(counts.shape[0]):
            for _j in range(counts[i]):
                gathered[written] = rows_of[rows[read]]
                read += 1
                written += 1
            if finals[i] >= 0:
                gathered[written] = finals_of[finals[i]]
                written += 1
        return gathered
    cdef char* out = <char*>cnp.PyArray_DATA(gathered)
    cdef char* source = <char*>cnp.PyArray_DATA(rows_of)
    cdef char* final_source = <char*>cnp.PyArray_DATA(finals_of)
    with nogil:
        for i in range(counts.shape[0]):
            for _j in range(counts[i]):
                memcpy(out, source + rows[read] * n_bytes, n_bytes)
                out += n_bytes
                read += 1
            if finals[i] >= 0:
                memcpy(out, final_source + finals[i] * n_bytes, n_bytes)
                out += n_bytes
    return gathered


def time_map(const lane_t[::1] env_ts, Py_ssize_t length, Py_ssize_t offset, long long first_t,
             Py_ssize_t final_place):
    """Make RLlib's env_t_to_agent_t of one agent: a list with an agent step, or "S", for each env step.

    Args:
        env_ts: env steps of the lane's rows.
        length: length of the list.
        offset: index in the list of env step 0 (negative in later chunks).
        first_t: agent step of the first row.
        final_place: index of the final observation, or -1.
    """
    cdef Py_ssize_t i, n = env_ts.shape[0]
    if n == length and n and env_ts[0] + offset == 0 and env_ts[n - 1] - env_ts[0] == n - 1:
        return list(range(first_t, first_t + n))
    cdef list out = [SKIPPED] * length
    for i in range(n):
        if env_ts[i] + offset >= 0:                               # not before the window
            out[env_ts[i] + offset] = first_t + i
    if final_place >= 0:
        out[final_place] = first_t + n
    return out


cpdef object buffer_of(object data, object lookback, object finalized, object space, object space_struct):
    """Make an InfiniteLookbackBuffer without its constructor."""
    buffer = _fresh(InfiniteLookbackBuffer)
    buffer.__dict__ = {"data": data, "lookback": lookback, "finalized": finalized, "_space": space,
                       "_space_struct": space_struct}
    return buffer


def agent_episode_of(agent, columns, str episode_id, tuple spaces, tuple clock):
    """Make a finalized SingleAgentEpisode.

    Args:
        agent: an AgentMeta (see fastmarl/rllib/episodes/sample_block.py).
        columns: ModuleColumns of its module.
        episode_id: id of the multi-agent episode.
        spaces: (observation space, its struct, action space, its struct).
        clock: (start time, time of the last step).
    """
    agent_id, _, module_id, id_, _, steps, obs_begin, lookback, t_started, flags, _, infos, odd, _ = agent
    cdef Py_ssize_t begin = steps[0], end = steps[1], n = end - begin
    agent_episode = _fresh(SingleAgentEpisode)
    agent_episode.id_ = id_
    agent_episode.agent_id = agent_id
    agent_episode.module_id = module_id
    agent_episode.multi_agent_episode_id = episode_id
    odd = odd or {}
    observations = odd.get("observations")
    if observations is None:
        observations = columns.nested_obs(obs_begin, obs_begin + n + 1)
    rewards = odd.get("rewards")
    if rewards is None:
        rewards = view(columns.rewards, begin, end)
    infos = [{} for _ in range(n + 1)] if infos is None else list(infos)
    if "extras" in odd:
        actions, extras = odd["actions"], odd["extras"]
    else:
        actions, extras = columns.nested_outputs(begin, end)
    agent_episode.observations = buffer_of(observations, lookback, True, spaces[0], spaces[1])
    agent_episode._observation_space = spaces[0]
    agent_episode.infos = buffer_of(infos, lookback, False, None, None)
    agent_episode.actions = buffer_of(actions, lookback, True, spaces[2], spaces[3])
    agent_episode._action_space = spaces[2]
    agent_episode.rewards = buffer_of(rewards, lookback, True, _REWARDS_BOX_SPACE, _REWARDS_BOX_SPACE)
    agent_episode.extra_model_outputs = {
        name: buffer_of(column, lookback, True, None, None) for name, column in extras.items()
    }
    agent_episode.is_terminated, agent_episode.is_truncated = flags
    agent_episode.t_started = t_started
    agent_episode.t = t_started + n - lookback
    agent_episode._last_added_observation = _last(observations)
    agent_episode._last_added_infos = infos[len(infos) - 1]
    agent_episode._start_time, agent_episode._last_step_time = clock
    agent_episode._custom_data = {}
    return agent_episode


cdef object _fresh(type kind):
    """Make an instance without calling its constructor."""
    return PyType_GenericNew(kind, (), None)


cpdef object view(cnp.ndarray array, Py_ssize_t begin, Py_ssize_t end):
    """Return array[begin:end] of a C-contiguous array, faster than by NumPy."""
    cdef cnp.npy_intp[MOST_AXES] shape
    cdef int axis, ndim = cnp.PyArray_NDIM(array)
    if cnp.PyArray_TYPE(array) == cnp.NPY_OBJECT or not cnp.PyArray_ISCARRAY(array) or begin < 0 or begin > end \
            or end > cnp.PyArray_DIM(array, 0) or ndim > MOST_AXES:
        return array[begin:end]
    for axis in range(ndim):
        shape[axis] = cnp.PyArray_DIM(array, axis)
    shape[0] = end - begin
    cdef cnp.ndarray part = cnp.PyArray_SimpleNewFromData(
        ndim, shape, cnp.PyArray_TYPE(array), cnp.PyArray_BYTES(array) + begin * row_bytes(array))
    cnp.set_array_base(part, array)
    return part


cdef object _last(object column):
    if type(column) is np.ndarray:
        return column[len(column) - 1]
    if isinstance(column, dict):
        return {key: _last(part) for key, part in column.items()}
    return tuple([_last(part) for part in column])


def is_slice(view, cnp.ndarray array, Py_ssize_t begin, Py_ssize_t end):
    """Return True if `view` is array[begin:end]."""
    if not cnp.PyArray_CheckExact(view) or cnp.PyArray_NDIM(view) != cnp.PyArray_NDIM(array):
        return False
    cdef cnp.ndarray part = view
    if (cnp.PyArray_TYPE(part) != cnp.PyArray_TYPE(array) or cnp.PyArray_DIM(part, 0) != end - begin
            or not cnp.PyArray_CompareLists(cnp.PyArray_DIMS(part) + 1, cnp.PyArray_DIMS(array) + 1,
                                            cnp.PyArray_NDIM(array) - 1)):
        return False
    if cnp.PyArray_SIZE(part) == 0:                               # any place and any strides will do
        return True
    if not cnp.PyArray_CompareLists(cnp.PyArray_STRIDES(part), cnp.PyArray_STRIDES(array), cnp.PyArray_NDIM(array)):
        return False
    return (cnp.PyArray_DATA(part) == cnp.PyArray_BYTES(array) + begin * cnp.PyArray_STRIDE(array, 0)
            and cnp.PyArray_ISBYTESWAPPED(part) == cnp.PyArray_ISBYTESWAPPED(array))


def read_numbers(episode):
    """Let the ChunkNumbers of an episode that is deleted, if it has any, read it for the last time.

    Python ignores errors of `__del__()`, so an interrupt is sent again, and comes when it has returned.
    """
    try:
        numbers = type(episode)._numbers.__get__(episode)
    except AttributeError:
        return
    try:
        numbers.read(episode)
    except KeyboardInterrupt:
        PyErr_SetInterrupt()

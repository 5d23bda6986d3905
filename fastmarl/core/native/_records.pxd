from typedefs cimport row_t


cdef class EpisodeRecord:
    cdef public Py_ssize_t env_index
    cdef public str id_
    cdef public double started_at
    cdef public double duration_s           # set at the end
    cdef public Py_ssize_t env_steps        # set at the end
    cdef public Py_ssize_t env_t_started    # of the current chunk
    cdef public Py_ssize_t lookback
    cdef public Py_ssize_t env_states_from  # env step of the first global state that the current chunk needs
    cdef public list lanes                  # of the current chunk, in order of appearance
    cdef public tuple joining               # lanes of agents that respawned in this chunk; they join the next one
    cdef public list ended                  # since the start of the call
    cdef public dict finished               # agent id -> its ended lane, or -1 once it has been returned
    cdef public dict early_rewards          # received before the first observation
    cdef public object policy_mapping_fn    # current at the reset; None: all agents use ...
    cdef public int only_module             # ... this module
    cdef public dict module_of              # agent id -> module index, from the mapping function
    cdef public object opened               # the episode as passed to mapping functions
    cdef public dict custom_data
    cdef public row_t reset_seed            # -1: no seed
    cdef public dict agent_returns          # of ended lanes
    cdef public dict agent_steps
    cdef public dict module_returns
    cdef int begin(self, Py_ssize_t env_index, str id_, double started_at) except -1
    cdef int add(self, object agent_id, object module, double total, row_t steps) except -1

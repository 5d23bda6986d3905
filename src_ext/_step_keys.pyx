"""Comparison of the agents that an env's steps name, and RLlib's order of agents."""
import numpy as np
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next, PyDict_Size
from cpython.list cimport PyList_GET_ITEM
from cpython.object cimport PyObject, PyObject_IsTrue

cdef str ALL = "__all__"


cdef class StepKeys:
    """The agents in an env's last step, to detect quickly if the next one names the same."""
    cdef list obs, rewards, terminateds, truncateds     # keys of these dicts; None: no step yet

    def forget(self):
        """Forget the last step, so that nothing equals it."""
        self.obs = self.rewards = self.terminateds = self.truncateds = None

    def remember(self, obs, rewards, terminateds, truncateds):
        """Remember the keys of a step for same() and fewer()."""
        self.obs, self.rewards = list(obs), list(rewards)
        self.terminateds, self.truncateds = list(terminateds), list(truncateds)

    def same(self, obs, rewards, terminateds, truncateds):
        """Return True if each dict has equal keys in equal order as remembered, and all agents that end are
        observed."""
        return (self.obs is not None and _same(obs, self.obs, None) and _same(rewards, self.rewards, None)
                and _same(terminateds, self.terminateds, obs) and _same(truncateds, self.truncateds, obs))

    def fewer(self, obs, rewards, terminateds, truncateds):
        """Return True if each dict has only remembered keys, the same objects in the same order; False if unsure."""
        return (self.obs is not None and _within(obs, self.obs) and _within(rewards, self.rewards)
                and _within(terminateds, self.terminateds) and _within(truncateds, self.truncateds))


cdef bint _within(object entries, list keys) except -1:
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t pos = 0, i = 0, n = len(keys)
    while PyDict_Next(entries, &pos, &key, &value):
        while i < n and PyList_GET_ITEM(keys, i) != key:
            i += 1
        if i == n:
            return False
        i += 1
    return True


cdef bint _same(object entries, list keys, object obs) except -1:
    """Return True if `keys` are those of `entries`; with observations, only observed agents may have true flags."""
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t pos = 0, i = 0
    if PyDict_Size(entries) != len(keys):
        return False
    while PyDict_Next(entries, &pos, &key, &value):              # borrowed from the dict
        if PyList_GET_ITEM(keys, i) != key or (obs is not None and <object>value is not False):
            agent_id, flag = <object>key, <object>value
            if keys[i] is not agent_id and keys[i] != agent_id:
                return False
            if obs is not None and PyObject_IsTrue(flag):
                if PyDict_GetItemWithError(obs, agent_id) == NULL and agent_id != ALL:
                    return False
        i += 1
    return True


def count_steps(tuple observed, Py_ssize_t n, dict module_of, dict agents, dict modules):
    """Add `n` steps to each agent's count in `agents`, and to its module's in `modules`."""
    for agent_id in observed:
        agents[agent_id] = agents.get(agent_id, 0) + n
        module_id = module_of[agent_id]
        modules[module_id] = modules.get(module_id, 0) + n


def names_others(set known, *dicts):
    """Return True if one of the dicts has a key that is neither a known agent nor "__all__"."""
    for entries in dicts:
        for agent_id in entries:
            if agent_id not in known and agent_id != ALL:
                return True
    return False


def ended_unobserved(dict lane_of, obs, terminateds, truncateds):
    """Return the set of agents in `lane_of` that end without an observation."""
    return {
        agent_id for agent_id in lane_of
        if agent_id not in obs and (terminateds.get(agent_id) or truncateds.get(agent_id))
    }


def places_in_set_order(list agents, obs, set unseen, bint own_order):
    """Return the places of agents' observations in `obs`, in the order of a set of agents that were observed or
    `unseen`.

    That is RLlib's order, which for strings depends on the process's hash seed.

    Args:
        agents: ids of agents.
        obs: the observations by agent.
        unseen: agents that end without an observation.
        own_order: use the order of `agents` instead.

    Returns:
        int32 places; None for 0, 1, 2, ... up to the last observation.
    """
    cdef Py_ssize_t n = 0
    cdef dict place_of = {agent_id: place for place, agent_id in enumerate(obs)}
    stepped = [agent_id for agent_id in agents if agent_id in place_of or unseen and agent_id in unseen]
    places = np.empty(len(stepped), np.int32)
    cdef int[::1] out = places
    cdef bint is_sorted = True
    for agent_id in stepped if own_order else set(stepped):
        if not unseen or agent_id not in unseen:
            out[n] = place_of[agent_id]
            is_sorted = is_sorted and out[n] == n
            n += 1
    return None if is_sorted and n == len(place_of) else places[:n]

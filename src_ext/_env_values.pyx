"""Conversion and checks of the rewards, flags and infos that envs return."""
import numpy as np
from copy import deepcopy
from cpython.dict cimport PyDict_Copy
from cpython.float cimport PyFloat_AsDouble, PyFloat_Check
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject_IsTrue

from typedefs cimport TERMINATED, lane_t

from fastmarl.core.errors import MultiAgentEnvError, RewardError, shown

cdef frozenset IMMUTABLE = frozenset((int, float, bool, str, bytes, type(None), np.float32, np.float64, np.int32,
                                      np.int64, np.bool_))


cpdef object private_copy(object info, Py_ssize_t env_index, object agent_id, lane_t env_t):
    """Copy an info for the record, as envs reuse info dicts and the arrays in them."""
    if type(info) is not dict:
        try:
            info = dict(info)
        except Exception as error:                                # raised by code of a subclass
            raise MultiAgentEnvError(env_index, agent_id, env_t, f"expected a dict as info, got {shown(info)}: "
                                     f"{type(error).__name__}: {error}") from error
    return copied_dict(info, kept)


def kept(object value):
    """Return a copy, as the env may change its object; values that can't be copied are kept, as in RLlib."""
    try:
        return deepcopy(value)
    except Exception:                                             # a file, a lock, or an error of its code
        return value


cdef dict copied_dict(dict info, copy):
    """Copy a dict, with its mutable values copied by `copy`."""
    cdef dict copied = PyDict_Copy(info)
    for key, value in copied.items():
        if type(value) not in IMMUTABLE:
            copied[key] = copy(value)
    return copied


cdef double as_double(object value, Py_ssize_t env_index, object agent_id, lane_t env_t) except? -1.0:
    """Convert a reward to a double: a float, an int, a NumPy scalar, or an array or tensor of one element."""
    try:
        if PyFloat_Check(value) or PyLong_CheckExact(value):
            return PyFloat_AsDouble(value)
        given = np.asarray(value)
        if given.size == 1 and given.dtype.kind in "fiub":
            return given.item()
    except Exception as error:                                    # its code may raise anything
        raise RewardError(env_index, agent_id, env_t,
                          f"expected a number as reward, got {shown(value)}: {error}") from error
    raise RewardError(env_index, agent_id, env_t, f"expected a number as reward, got {shown(value)}")


cdef bint is_true(object flag, Py_ssize_t env_index, object agent_id, lane_t env_t, int bit) except -1:
    try:
        return PyObject_IsTrue(flag)
    except Exception as error:                                    # an array of several, or an error of its code
        name = "terminateds" if bit == TERMINATED else "truncateds"
        raise MultiAgentEnvError(env_index, agent_id, env_t, f"expected True or False in {name}, got "
                                 f"{type(flag).__name__} {shown(flag)}: {error}") from error

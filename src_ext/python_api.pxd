# Header only: functions of Python's C API, declared to take any object. Subclasses of dict (PettingZoo's envs return
# defaultdicts) are dicts to them. Keys and values are borrowed.
from cpython.object cimport PyObject

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object p, object key) except? NULL
    int PyDict_Next(object p, Py_ssize_t *pos, PyObject **key, PyObject **value)
    Py_ssize_t PyDict_Size(object p) except -1
    PyObject* PyTuple_GET_ITEM(object p, Py_ssize_t i) noexcept
    Py_ssize_t PyTuple_GET_SIZE(object p) noexcept
    PyObject* PyList_GET_ITEM(object p, Py_ssize_t i) noexcept

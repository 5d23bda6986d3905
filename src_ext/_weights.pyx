"""Detection of changes of a module's layers, or of its weights' memory, before each forward pass that relies on them.

Tensors are queried through torch's stable C interface: method calls would take as long as a small network.
"""
import ctypes

import torch
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

ctypedef int (*data_getter)(void *tensor, void **out) noexcept      # return 0, or another number for an error
ctypedef int (*number_getter)(void *tensor, int64_t *out) noexcept
ctypedef int (*sizes_getter)(void *tensor, int64_t **out) noexcept
ctypedef int (*deleter)(void *tensor) noexcept

cdef extern from *:
    """
    /* Changes with every change of the dict; 0 if this Python has no such version. */
    static inline uint64_t fastmarl_dict_version(PyObject *dict) {
    #if PY_VERSION_HEX < 0x030C0000
        return ((PyDictObject *)dict)->ma_version_tag;
    #else
        return 0;
    #endif
    }
    """
    uint64_t fastmarl_dict_version(PyObject *names) noexcept

cdef enum:
    MOST_DIMS = 5       # kernels of three-dimensional convolutions

cdef struct place:
    void *tensor        # torch's handle, owned by us
    void *data
    int64_t dims
    int64_t shape[MOST_DIMS]
    int64_t strides[MOST_DIMS]

cdef struct held:
    PyObject *names         # the dict
    PyObject *values        # tuple of the dict's values
    uint64_t version        # of the dict

_torch = ctypes.CDLL(torch._C.__file__)     # its symbols, and those of the libraries that it is linked with


cdef void *_address(str name):
    return <void*><size_t>ctypes.cast(getattr(_torch, f"aoti_torch_{name}"), ctypes.c_void_p).value


cdef data_getter _get_data = <data_getter>_address("get_data_ptr")
cdef number_getter _get_dim = <number_getter>_address("get_dim")
cdef sizes_getter _get_shape = <sizes_getter>_address("get_sizes")
cdef sizes_getter _get_strides = <sizes_getter>_address("get_strides")
cdef deleter _delete = <deleter>_address("delete_tensor_object")


cdef class WeightsWatch:
    """Remembers children, parameters and buffers of some parts of a module, and the memory of these tensors.

    Tensors of another dtype or device have other memory.

    Args:
        parts: torch modules, whose entries are kept alive so that their addresses are not reused.
        children_only: ignore parameters and buffers.
    """
    cdef list _owned            # keeps the targets of `_held` alive
    cdef Py_ssize_t _n_held, _n_places
    cdef held *_held            # children, parameters and buffers, by name
    cdef place *_places
    cdef bint _is_known         # False if a tensor could not be queried

    def __cinit__(self, parts, *, bint children_only=False):
        self._owned = []
        for part in parts:
            for name in ("_modules",) if children_only else ("_modules", "_parameters", "_buffers"):
                names = vars(part)[name]
                if names:
                    self._owned.append((names, tuple(names.values())))
        tensors = [value for _, values in self._owned for value in values if isinstance(value, torch.Tensor)]
        self._held = <held*>calloc(max(1, len(self._owned)), sizeof(held))
        self._places = <place*>calloc(max(1, len(tensors)), sizeof(place))
        if self._held == NULL or self._places == NULL:
            raise MemoryError
        for names, values in self._owned:
            self._held[self._n_held].names, self._held[self._n_held].values = <PyObject*>names, <PyObject*>values
            self._n_held += 1
        self._is_known = True
        for handle in torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(tensors):
            self._places[self._n_places].tensor = PyCapsule_GetPointer(handle, PyCapsule_GetName(handle))
            self._is_known &= _look(self._places + self._n_places)
            self._n_places += 1

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self._n_places):
            _delete(self._places[i].tensor)
        free(self._places)
        free(self._held)

    cpdef bint holds(self) noexcept:
        """Return True if all entries and their memory are the same; numbers in weights may have changed."""
        cdef Py_ssize_t i
        if not self._is_known:
            return False
        for i in range(self._n_held):
            if not _is_same(self._held + i):
                return False
        for i in range(self._n_places):
            if not _is_at(self._places + i):
                return False
        return True


def all_hold(dict watched, modules, module_ids):
    """Return True if these modules are still the watched objects, and none has changed.

    Args:
        watched: module id -> (module, WeightsWatch).
        modules: current modules by id.
        module_ids: ids of the modules to check.
    """
    for module_id in module_ids:
        known = watched.get(module_id)
        if known is None:
            return False
        module, watch = <tuple>known
        if modules.get(module_id) is not module or not (<WeightsWatch?>watch).holds():
            return False
    return True


cdef bint _is_same(held *known) noexcept:
    """Return True if the dict has exactly these values."""
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t pos = 0, i = 0
    cdef uint64_t version = fastmarl_dict_version(known.names)
    if version and version == known.version:
        return True
    if PyDict_Size(<object>known.names) != PyTuple_GET_SIZE(<object>known.values):
        return False
    while PyDict_Next(<object>known.names, &pos, &key, &value):
        if value != PyTuple_GET_ITEM(<object>known.values, i):
            return False
        i += 1
    known.version = version
    return True


cdef bint _look(place *tensor) noexcept:
    """Store a tensor's memory; return False if it can't be queried."""
    cdef int64_t *shape = NULL
    cdef int64_t *strides = NULL
    if _get_data(tensor.tensor, &tensor.data) or _get_dim(tensor.tensor, &tensor.dims) or tensor.dims > MOST_DIMS:
        return False
    if _get_shape(tensor.tensor, &shape) or _get_strides(tensor.tensor, &strides):
        return False
    memcpy(tensor.shape, shape, tensor.dims * sizeof(int64_t))
    memcpy(tensor.strides, strides, tensor.dims * sizeof(int64_t))
    return True


cdef bint _is_at(const place *known) noexcept:
    """Return True if the tensor has the same memory and form as before."""
    cdef void *data
    cdef int64_t dims
    cdef int64_t *shape
    cdef int64_t *strides
    if _get_data(known.tensor, &data) or data != known.data or _get_dim(known.tensor, &dims) or dims != known.dims:
        return False
    if _get_shape(known.tensor, &shape) or _get_strides(known.tensor, &strides):
        return False
    cdef int64_t i
    for i in range(dims):       # faster than two calls of memcmp()
        if shape[i] != known.shape[i] or strides[i] != known.strides[i]:
            return False
    return True

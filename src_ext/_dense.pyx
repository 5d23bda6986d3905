"""Small dense networks on one core, without torch; dense.h describes the computation."""
cimport numpy as cnp
import numpy as np
from libc.stdlib cimport calloc, free

from block_threads cimport block_threads_run

from fastmarl.core.native._block_threads cimport BlockThreads

cnp.import_array()

cdef extern from "dense.h" nogil:
    const int ROWS, BLOCK_ROWS
    const int PLAIN, AVX2, AVX512
    const int LINEAR, TANH, RELU, SILU, GELU, ELU
    const int LSTM, GRU
    ctypedef struct dense_layer:
        float *weight                       # const in C; so are the biases
        float *bias
        Py_ssize_t n_in
        Py_ssize_t n_out
        float eps
        int activation
        float alpha
        int source
        float *y
        dense_cell *cell
    ctypedef struct dense_cell:
        int kind
        dense_layer from_source
        dense_layer from_state
        float *h
        float *c
        float *given_h                      # const in C; so is given_c
        float *given_c
        float *next_h
        float *next_c
    ctypedef struct dense_net:
        int variant
        int n_layers
        dense_layer *layers
        Py_ssize_t n_obs
        float *turned_obs
        float *as_floats
    ctypedef struct dense_call:
        const dense_net **nets
        Py_ssize_t n
        const char *obs
        int is_float
        int is_signed
        float scale
        int logits
        int values
        Py_ssize_t n_means
        Py_ssize_t n_logits
        const float *log_std
        const float *bound
        float *out_logits
        float *out_values
    int best_variant()
    void dense_block(const void *context, int thread, Py_ssize_t block)

ACTIVATIONS = {"linear": LINEAR, "tanh": TANH, "relu": RELU, "silu": SILU, "gelu": GELU, "elu": ELU}
CELLS = {"lstm": LSTM, "gru": GRU}
_ALL_VARIANTS = {"plain": PLAIN, "avx2": AVX2, "avx512": AVX512}
VARIANTS = {name: variant for name, variant in _ALL_VARIANTS.items() if variant <= best_variant()}
"""Instruction sets that this processor supports."""
BEST = max(VARIANTS, key=VARIANTS.get)
cdef enum:
    _MOST_THREADS = 64
MOST_THREADS = _MOST_THREADS
"""Largest number of threads for one network."""


cdef class DenseNet:
    """A policy network and, if there is one, its value function. It reads the weights in place at every call.

    Args:
        n_obs: number of values in an observation.
        layers: (source, weight, bias, activation, alpha, eps, cell) of each: index of the layer whose outputs it gets
            (-1: the observations); float32 [n_out, n_in]; float32 [n_out] or None; a key of ACTIVATIONS; parameter of
            "elu"; None, or eps of a layer normalisation, whose weight is float32 [n_in] or None; None, or (a key of
            CELLS, weight, bias) of the state, in torch's order of gates, of which the layer's own n_out counts each.
        logits, values: indices of the layers that give the logits and, with one output, the values (-1: no values).
        log_std: float32 [k], appended to every row of logits; or None.
        variant: a key of VARIANTS; None: the best one.
        scale: factor for observations of integers.
        bound: float32 [1]: the second half of each row of logits is clipped to [-bound, bound]; or None.

    Raises:
        ValueError: shapes or dtypes don't fit together, or an array is not C-contiguous.
    """
    cdef dense_net _net
    cdef int _logits, _values
    cdef Py_ssize_t _n_means, _n_logits, _n
    cdef cnp.ndarray _log_std, _bound
    cdef list _weights                      # keeps the arrays alive that layers point to
    cdef cnp.ndarray _room, _out_logits, _out_values
    cdef float _scale
    cdef bint _has_cells

    def __cinit__(
        self, Py_ssize_t n_obs, list layers, int logits, int values, log_std, variant=None, float scale=1.0, bound=None
    ):
        self._weights = []
        self._net.variant = VARIANTS[variant or BEST]
        self._net.n_layers, self._net.n_obs = len(layers), n_obs
        self._net.layers = <dense_layer*>calloc(max(1, len(layers)), sizeof(dense_layer))
        if self._net.layers == NULL:
            raise MemoryError
        self._net.turned_obs, self._net.as_floats, self._scale = self._rows(n_obs), self._rows(n_obs), scale
        for i, (source, weight, bias, activation, alpha, eps, cell) in enumerate(layers):
            self._add(i, source, weight, bias, ACTIVATIONS[activation], alpha, eps, cell)
        if not 0 <= logits < len(layers) or not -1 <= values < len(layers):
            raise ValueError(f"logits and values must be layers, got {logits} and {values} of {len(layers)}")
        if values >= 0 and self._net.layers[values].n_out != 1:
            raise ValueError(f"values must have one output, got {self._net.layers[values].n_out}")
        self._logits, self._values = logits, values
        self._n_means = self._n_logits = self._net.layers[logits].n_out
        self._log_std = None
        if log_std is not None:
            self._log_std = _floats(log_std, (log_std.size,))
            self._n_logits += log_std.size
        self._bound = None if bound is None else _floats(bound, (1,))
        if bound is not None and self._n_logits % 2:
            raise ValueError(f"with a bound, the number of logits must be even, got {self._n_logits}")
        self._n = -1
        self._room = np.empty((0, 1), np.float32)

    cdef _add(self, Py_ssize_t i, int source, weight, bias, int activation, float alpha, eps, cell):
        cdef dense_layer *layer = self._net.layers + i
        if not -1 <= source < i:
            raise ValueError(f"layer {i} must have a layer before it as its source, or -1, got {source}")
        layer.n_in = self._net.n_obs if source < 0 else self._net.layers[source].n_out
        layer.source, layer.activation, layer.alpha = source, activation, alpha
        layer.eps = -1 if eps is None else eps
        if eps is not None and not layer.eps >= 0:
            raise ValueError(f"eps of layer {i} must be at least 0, got {eps}")
        if cell is not None:
            self._add_cell(layer, weight, bias, cell)
        elif eps is not None:
            layer.n_out = layer.n_in
            layer.weight, layer.bias = self._kept(weight, (layer.n_in,)), self._kept(bias, (layer.n_in,))
        else:
            layer.n_out = len(weight)
            layer.weight = self._kept(weight, (layer.n_out, layer.n_in))
            layer.bias = self._kept(bias, (layer.n_out,))
        layer.y = self._rows(layer.n_out)

    cdef _add_cell(self, dense_layer *layer, weight, bias, tuple memory):
        cdef dense_cell *cell
        cdef Py_ssize_t n_gates
        kind, state_weight, state_bias = memory
        layer.n_out = state_weight.shape[1]
        self._has_cells = True
        struct = np.zeros(sizeof(dense_cell), np.uint8)
        self._weights.append(struct)
        layer.cell = cell = <dense_cell*>cnp.PyArray_DATA(<cnp.ndarray>struct)
        cell.kind = CELLS[kind]
        n_gates = (4 if cell.kind == LSTM else 3) * layer.n_out
        cell.from_source.n_in, cell.from_state.n_in = layer.n_in, layer.n_out
        cell.from_source.weight = self._kept(weight, (n_gates, layer.n_in))
        cell.from_source.bias = self._kept(bias, (n_gates,))
        cell.from_state.weight = self._kept(state_weight, (n_gates, layer.n_out))
        cell.from_state.bias = self._kept(state_bias, (n_gates,))
        cell.from_source.n_out, cell.from_source.y = n_gates, self._rows(n_gates)
        cell.from_state.n_out, cell.from_state.y = n_gates, self._rows(n_gates)
        cell.h, cell.c = self._rows(layer.n_out), self._rows(layer.n_out)

    cdef float *_kept(self, array, tuple shape) except? NULL:
        """Return the numbers of an array, which stays alive; NULL for None."""
        if array is None:
            return NULL
        self._weights.append(array)
        return <float*>cnp.PyArray_DATA(_floats(array, shape))

    cdef float *_rows(self, Py_ssize_t n) except NULL:
        """Make room for ROWS rows of n numbers, and a vector beyond them."""
        array = np.zeros((n + 1) * ROWS, np.float32)
        self._weights.append(array)
        return <float*>cnp.PyArray_DATA(<cnp.ndarray>array)

    def __dealloc__(self):
        free(self._net.layers)

    def forward(self, cnp.ndarray obs, list states=None, list next_states=None, BlockThreads threads=None,
                list copies=None):
        """Compute the network.

        Args:
            obs: [n, ...], n_obs values each; C-contiguous, of float32, uint8 or int8.
            states, next_states: of each LSTM (h, c) and GRU (h), in order, float32 [n, size], C-contiguous: the states
                before this step, and arrays for those after it.
            threads: they compute blocks of rows, with the same result to the last bit; None: this thread alone.
            copies: networks of the same layers, one for each of the threads.

        Returns:
            (logits float32 [n, k], values float32 [n] or None), which the next call overwrites.
        """
        cdef Py_ssize_t n = len(obs)
        cdef int kind = _kind(obs, n * self._net.n_obs), k
        cdef const dense_net *nets[_MOST_THREADS]
        cdef dense_call call
        cdef Py_ssize_t block, n_blocks = (n + BLOCK_ROWS - 1) // BLOCK_ROWS
        if n != self._n:
            self._make_room(n)
        if self._has_cells or states or next_states:
            self._set_states(n, iter(states or ()), iter(next_states or ()))
        nets[0] = &self._net
        if threads is not None and not len(copies) + 1 == threads.n <= _MOST_THREADS:
            raise ValueError(f"expected a network for each of at most {_MOST_THREADS} threads, got {len(copies) + 1} "
                             f"for {threads.n}")
        for k in range(0 if threads is None else len(copies)):
            nets[k + 1] = self._net_of(copies[k], n, states, next_states)
        call.nets, call.n, call.obs = nets, n, <char*>cnp.PyArray_DATA(obs)
        call.is_float, call.is_signed, call.scale = kind == cnp.NPY_FLOAT32, kind == cnp.NPY_INT8, self._scale
        call.logits, call.values = self._logits, self._values
        call.n_means, call.n_logits = self._n_means, self._n_logits
        call.log_std = NULL if self._log_std is None else <float*>cnp.PyArray_DATA(self._log_std)
        call.bound = NULL if self._bound is None else <float*>cnp.PyArray_DATA(self._bound)
        call.out_logits = <float*>cnp.PyArray_DATA(self._out_logits)
        call.out_values = NULL if self._values < 0 else <float*>cnp.PyArray_DATA(self._out_values)
        with nogil:
            if threads is not None:
                block_threads_run(threads.shared, dense_block, &call, n_blocks)
            else:
                for block in range(n_blocks):
                    dense_block(&call, 0, block)
        return self._out_logits, self._out_values

    cdef const dense_net *_net_of(self, DenseNet copy, Py_ssize_t n, list states, list next_states) except NULL:
        """Return a copy's network, prepared for the same rows."""
        if copy._net.n_layers != self._net.n_layers or copy._net.n_obs != self._net.n_obs:
            raise ValueError("this is no copy of the network")
        if copy._has_cells:
            copy._set_states(n, iter(states or ()), iter(next_states or ()))
        return &copy._net

    cdef int _set_states(self, Py_ssize_t n, states, next_states) except -1:
        cdef dense_cell *cell
        cdef Py_ssize_t i, size
        for i in range(self._net.n_layers):
            cell, size = self._net.layers[i].cell, self._net.layers[i].n_out
            if cell == NULL:
                continue
            cell.given_h, cell.next_h = _state(states, n, size), _state(next_states, n, size)
            if cell.kind == LSTM:
                cell.given_c, cell.next_c = _state(states, n, size), _state(next_states, n, size)
        if next(states, None) is not None or next(next_states, None) is not None:
            raise ValueError("there are more states than the network has")
        return 0

    cdef int _make_room(self, Py_ssize_t n) except -1:
        """Make room for the outputs of n rows, reusing memory that is large enough."""
        self._n = -1       # until all has been set
        if n > len(self._room):
            self._room = np.empty((n, self._n_logits + 1), np.float32)
        floats = self._room.reshape(-1)
        self._out_logits = floats[: n * self._n_logits].reshape(n, self._n_logits)
        self._out_values = None if self._values < 0 else floats[n * self._n_logits : n * (self._n_logits + 1)]
        self._n = n
        return 0


cdef cnp.ndarray _floats(cnp.ndarray array, tuple shape):
    """Return the array; raise ValueError unless it is float32, C-contiguous and of this shape."""
    if cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT32 and cnp.PyArray_ISCARRAY_RO(array) and (<object>array).shape == shape:
        return array
    raise ValueError(f"expected float32 {shape}, C-contiguous, got {array.dtype} {(<object>array).shape}")


cdef float *_state(states, Py_ssize_t n, Py_ssize_t size) except? NULL:
    """Return the numbers of the next state, [n, size]."""
    array = next(states, None)
    if array is not None:
        return <float*>cnp.PyArray_DATA(_floats(array, (n, size)))
    raise ValueError(f"expected a state of float32 {(n, size)}, got none")


cdef int _kind(cnp.ndarray obs, Py_ssize_t size) except -1:
    """Return NumPy's number of the dtype of observations; raise ValueError if dtype or size is wrong."""
    cdef int kind = cnp.PyArray_TYPE(obs)
    if (kind in (cnp.NPY_FLOAT32, cnp.NPY_UINT8, cnp.NPY_INT8) and cnp.PyArray_ISCARRAY_RO(obs)
            and cnp.PyArray_SIZE(obs) == size):
        return kind
    raise ValueError(f"expected float32, uint8 or int8, {size} numbers in all, C-contiguous, got {obs.dtype} "
                     f"{(<object>obs).shape}")

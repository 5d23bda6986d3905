"""PPO's gradient of dense and recurrent networks on one core, without autograd; ppo.h describes the computation.

Schulman et al. (2017), "Proximal Policy Optimization Algorithms", as in RLlib's PPOTorchLearner and `ppo_loss()`.
Numbers that are not finite make derivatives not finite: as in autograd, products are taken even where a factor is 0.
"""
cimport numpy as cnp
import numpy as np
from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free

from block_threads cimport block_threads_run
from ppo cimport (
    ACTIONS, AVX2, AVX512, CATEGORICAL, COUNTS, ELU, GAUSSIAN, GELU, GIVEN, GRU, LINEAR, LSTM, N_SUMS, PLAIN, RELU,
    SILU, TANH, best_variant, ppo_cell, ppo_lanes, ppo_layer, ppo_loss, ppo_minibatch, ppo_net, ppo_part,
    ppo_part_gradient,
)

from fastmarl.core.native._block_threads cimport BlockThreads

cnp.import_array()

_ACTIVATIONS = {"linear": LINEAR, "tanh": TANH, "relu": RELU, "silu": SILU, "gelu": GELU, "elu": ELU}
_CELLS = {"lstm": LSTM, "gru": GRU}
_ALL_VARIANTS = {"plain": PLAIN, "avx2": AVX2, "avx512": AVX512}
VARIANTS = {name: variant for name, variant in _ALL_VARIANTS.items() if variant <= best_variant()}
"""Instruction sets that this processor supports."""
BEST = max(VARIANTS, key=VARIANTS.get)
SUMS = ("count", "surrogate", "vf_loss", "entropy", "kl", "clipped", "error", "squared_error", "target",
        "squared_target", "former_kl")
"""Names of the sums of `compute()`."""

cdef enum:
    _MOST_PARTS = 8
MOST_PARTS = _MOST_PARTS
"""Largest number of parts of a minibatch."""

cdef Py_ssize_t LINE = 16                   # floats in a cache line, and in the widest vector
cdef Py_ssize_t ROOM = 1 << 16              # floats for a block's outputs and their derivatives
cdef Py_ssize_t WHOLE_ROOM = 1 << 19        # the same for a minibatch that is kept whole between its two passes


cdef class PPOGradient:
    """Computes gradients. It reads the weights in place at every call.

    Args:
        n_obs: number of values in an observation.
        layers: (source, weight, bias, activation, alpha, d_weight, d_bias, cell) of each: index of the layer whose
            outputs it gets (-1: the observations); float32 [n_out, n_in]; float32 [n_out] or None; "linear", "tanh",
            "relu", "silu", "gelu" or "elu"; parameter of "elu"; arrays for the gradients, of the same shapes, or None;
            None, or for an LSTM or GRU ("lstm" or "gru", weight, bias, d_weight, d_bias) of its state, in torch's order
            of gates, of which the layer's n_out counts each.
        logits, values: indices of the layers that give the logits and, with one output, the values (-1: no values).
        sizes: number of options of each choice of a categorical policy; None: a Gaussian policy, whose logits are
            means, then logarithms of standard deviations.
        log_std, d_log_std: float32 [n], second half of a Gaussian's logits, if the layer gives only means, and the
            array for its gradient; or None.
        bound: bound of a Gaussian's logarithms of standard deviations; None: unbounded.
        has_mask, has_former: True if `rows` have masks, and former logits (for `kl_coeff`).
        is_given: True if `rows` are not of PPO's loss, but the derivatives of another one by the logits, [k]. Other
            options are for PPO's loss.
        variant: a key of VARIANTS; None: the best one.

    Raises:
        ValueError: shapes or dtypes don't fit together, or an array is not C-contiguous.
    """
    cdef ppo_net _net
    cdef list _arrays, _room                # keep the arrays alive that are pointed to
    cdef Py_ssize_t _length                 # of the sequences for which there is room
    cdef tuple _last                        # arguments of the last `outputs()`
    cdef readonly Py_ssize_t width          # of `rows`

    def __cinit__(self, Py_ssize_t n_obs, list layers, int logits, int values, *, sizes=None, log_std=None,
                  d_log_std=None, bound=None, bint has_mask=False, bint has_former=False, bint is_given=False,
                  variant=None):
        self._arrays = []
        self._net.variant = VARIANTS[variant or BEST]
        self._net.n_layers, self._net.n_obs, self._net.obs_stride = len(layers), n_obs, _stride(n_obs)
        self._net.layers = <ppo_layer*>calloc(max(1, len(layers)), sizeof(ppo_layer))
        if self._net.layers == NULL:
            raise MemoryError
        if not 0 <= logits < len(layers) or not -1 <= values < len(layers) or logits == values:
            raise ValueError(f"logits and values must be layers, got {logits} and {values} of {len(layers)}")
        for i, (source, weight, bias, activation, alpha, d_weight, d_bias, cell) in enumerate(layers):
            self._add(i, source, weight, bias, activation, alpha, d_weight, d_bias, cell)
        if values >= 0 and self._net.layers[values].n_out != 1:
            raise ValueError(f"values must have one output, got {self._net.layers[values].n_out}")
        self._net.logits, self._net.values = logits, values
        if is_given:
            self._set_given()
        else:
            self._set_loss(sizes, log_std, d_log_std, bound, has_mask, has_former)
        widest = self._net.obs_stride
        for i in range(self._net.n_layers):
            widest = max(widest, self._net.layers[i].stride)
        self._net.zeros = self._floats(widest)
        self._net.lanes = self._floats(ppo_lanes(self._net.loss.n_logits, self._net.loss.n_choices))

    cdef _add(self, Py_ssize_t i, int source, weight, bias, activation, float alpha, d_weight, d_bias, cell):
        cdef ppo_layer *layer = self._net.layers + i
        if not -1 <= source < i:
            raise ValueError(f"layer {i} must have a layer before it as its source, or -1, got {source}")
        layer.n_in = self._net.n_obs if source < 0 else self._net.layers[source].n_out
        layer.in_stride = self._net.obs_stride if source < 0 else self._net.layers[source].stride
        layer.n_out = len(weight) if cell is None else cell[1].shape[1]
        layer.stride = row = _stride(layer.n_out)
        layer.source, layer.activation, layer.alpha = source, _ACTIVATIONS[activation], alpha
        if cell is not None:
            self._add_cell(layer, cell)
            row = layer.cell.row
        rows = layer.n_out * (1 if cell is None else layer.cell.n_gates)
        layer.weight = self._kept(weight, (rows, layer.n_in))
        layer.d_weight = self._kept(d_weight, (rows, layer.n_in))
        layer.bias, layer.d_bias = self._kept(bias, (rows,)), self._kept(d_bias, (rows,))
        layer.turned, layer.sum_weight = self._floats(layer.n_in * row), self._floats(rows * layer.in_stride)
        layer.straight = NULL if source < 0 else self._floats(rows * layer.in_stride)
        layer.row_bias, layer.sum_bias = self._floats(row), self._floats(row)

    cdef _add_cell(self, ppo_layer *layer, tuple memory):
        cdef ppo_cell *cell
        cdef Py_ssize_t n = layer.n_out, rows
        kind, weight, bias, d_weight, d_bias = memory
        struct = np.zeros(sizeof(ppo_cell), np.uint8)
        self._arrays.append(struct)
        layer.cell = cell = <ppo_cell*>cnp.PyArray_DATA(<cnp.ndarray>struct)
        cell.kind = _CELLS[kind]
        cell.n_gates = 4 if cell.kind == LSTM else 3
        cell.gap, cell.row, rows = layer.stride, _stride(4 * layer.stride), cell.n_gates * n
        cell.weight, cell.d_weight = self._kept(weight, (rows, n)), self._kept(d_weight, (rows, n))
        cell.bias, cell.d_bias = self._kept(bias, (rows,)), self._kept(d_bias, (rows,))
        cell.turned = self._floats(n * cell.row)
        cell.straight, cell.sum_weight = self._floats(rows * layer.stride), self._floats(rows * layer.stride)

    cdef _set_given(self):
        if self._net.values >= 0:
            raise ValueError("there are no derivatives by the values")
        self._net.loss.kind = GIVEN
        self._net.loss.n_logits = self.width = self._net.layers[self._net.logits].n_out

    cdef _set_loss(self, sizes, log_std, d_log_std, bound, bint has_mask, bint has_former):
        cdef ppo_loss *loss = &self._net.loss
        cdef Py_ssize_t n_out = self._net.layers[self._net.logits].n_out
        loss.kind = GAUSSIAN if sizes is None else CATEGORICAL
        loss.n_logits = n_out + (0 if log_std is None else len(log_std))
        loss.has_mask, loss.has_former = has_mask, has_former
        loss.bound = INFINITY if bound is None else bound
        if sizes is None:
            loss.n_choices = loss.n_logits // 2
            if loss.n_logits % 2 or loss.n_logits == 0 or has_mask or (log_std is not None and len(log_std) != n_out):
                raise ValueError("a Gaussian needs as many standard deviations as means and no mask, got "
                                 f"{loss.n_logits} logits")
            self._net.log_std = self._kept(log_std, (loss.n_choices,))
            self._net.d_log_std = self._kept(d_log_std, (loss.n_choices,))
        else:
            options = np.array(sizes, np.intp)
            if options.ndim != 1 or (options < 1).any() or options.sum() != n_out or loss.n_logits != n_out:
                raise ValueError(f"choices of {sizes} options need a logit for each, got {n_out}")
            self._arrays.append(options)
            loss.n_choices, loss.sizes = len(options), <Py_ssize_t*>cnp.PyArray_DATA(options)
        self.width = ACTIONS + loss.n_choices + loss.n_logits * (has_mask + has_former)

    cdef Py_ssize_t _sequences(self, Py_ssize_t n, Py_ssize_t length) noexcept:
        """Return the number of sequences in a block for a minibatch of n."""
        cdef ppo_layer *layer
        cdef Py_ssize_t i, n_floats = self._net.obs_stride
        for i in range(self._net.n_layers):
            layer = self._net.layers + i
            n_floats += 2 * layer.stride + (0 if layer.cell == NULL else layer.cell.row + layer.stride)
        if self._net.loss.kind == GIVEN and n <= WHOLE_ROOM // (n_floats * length):
            return max(1, n)                # a single block, which a second forward pass would cost more
        return max(24 if length == 1 else 12, min(480, ROOM // (n_floats * length) // 24 * 24))

    cdef int _make_room(self, Py_ssize_t n, Py_ssize_t length) except -1:
        """Allocate memory for blocks of n sequences of this length."""
        cdef ppo_layer *layer
        cdef ppo_cell *cell
        cdef Py_ssize_t i
        self._length, self._room = 0, []
        self._net.block = n * length
        self._net.x = self._rows(self._net.block, self._net.obs_stride)
        index = np.zeros(self._net.block, np.intp)
        self._room.append(index)
        self._net.index = <Py_ssize_t*>cnp.PyArray_DATA(<cnp.ndarray>index)
        for i in range(self._net.n_layers):
            layer = self._net.layers + i
            cell = layer.cell
            layer.y, layer.d = self._rows(self._net.block, layer.stride), self._rows(self._net.block, layer.stride)
            if layer.activation in (SILU, GELU, ELU):
                layer.before = self._rows(self._net.block, layer.stride)
            if cell != NULL:
                cell.gates, cell.c = self._rows(self._net.block, cell.row), self._rows(self._net.block, layer.stride)
                cell.first_h, cell.first_c = self._rows(n, layer.stride), self._rows(n, layer.stride)
                cell.d_c = self._rows(n, layer.stride)
        self._length = length
        return 0

    cdef float *_rows(self, Py_ssize_t n, Py_ssize_t stride) except NULL:
        """Allocate n rows of a block."""
        return _zeros(n * stride, self._room)

    cdef float *_floats(self, Py_ssize_t n) except NULL:
        """Allocate memory that is kept."""
        return _zeros(n, self._arrays)

    cdef float *_kept(self, array, tuple shape):
        if array is None:
            return NULL
        self._arrays.append(array)
        return <float*>cnp.PyArray_DATA(_checked(array, cnp.NPY_FLOAT32, shape))

    def __dealloc__(self):
        free(self._net.layers)

    def compute(self, cnp.ndarray obs, cnp.ndarray rows, cnp.ndarray order, **options):
        """Overwrite the gradients by a minibatch of one part; return its sums. See `compute_parts()`."""
        return compute_parts([self], obs, rows, [order], None, **options)[0]

    cdef int _prepare(self, ppo_minibatch *batch, cnp.ndarray obs, rows, cnp.ndarray order, Py_ssize_t length,
                      list states) except -1:
        """Set the minibatch's arrays, and make room for it. Outputs need no `rows`."""
        cdef Py_ssize_t n, n_rows = len(obs)
        if length < 1 or n_rows % length:
            raise ValueError(f"expected sequences of {length} rows, got {n_rows} rows")
        batch.obs = <float*>cnp.PyArray_DATA(_checked(obs, cnp.NPY_FLOAT32, (n_rows, self._net.n_obs)))
        batch.rows, batch.outputs, batch.is_forwarded = NULL, NULL, False
        if rows is not None:
            batch.rows = <float*>cnp.PyArray_DATA(_checked(rows, cnp.NPY_FLOAT32, (n_rows, self.width)))
        batch.order = <Py_ssize_t*>cnp.PyArray_DATA(_checked(order, cnp.NPY_INTP, (len(order),)))
        batch.n, batch.length, batch.width = len(order), length, self.width
        self._set_states(n_rows // length, iter(states or ()))
        n = self._sequences(batch.n, length)
        if length != self._length or n * length > self._net.block:
            self._make_room(n, length)
        return 0

    cdef int _set_states(self, Py_ssize_t n, states) except -1:
        cdef ppo_cell *cell
        cdef Py_ssize_t i, size
        for i in range(self._net.n_layers):
            cell, size = self._net.layers[i].cell, self._net.layers[i].n_out
            if cell != NULL:
                cell.given_h = _state(states, n, size)
                if cell.kind == LSTM:
                    cell.given_c = _state(states, n, size)
        if next(states, None) is not None:
            raise ValueError("there are more states than the network has")
        return 0

    def outputs(self, cnp.ndarray obs, cnp.ndarray order, *, Py_ssize_t length=1, list states=None):
        """Return the outputs of the layer of logits, float32 [N length, k]; zeros for sequences that are left out.

        Args:
            obs, order, length, states: See `compute_parts()`.
        """
        cdef ppo_minibatch batch
        found = np.zeros((len(obs), self._net.layers[self._net.logits].n_out), np.float32)
        self._last = None
        self._prepare(&batch, obs, None, order, length, states)
        batch.outputs = <float*>cnp.PyArray_DATA(<cnp.ndarray>found)
        self._run(&batch)
        self._last = obs, order, length, states
        return found

    def backward(self, cnp.ndarray derivatives not None):
        """Overwrite the gradients, given those by the logits, after `outputs()` with the same weights.

        Args:
            derivatives: float32 [N length, k].
        """
        cdef ppo_minibatch batch
        if self._last is None or self._net.loss.kind != GIVEN:
            raise ValueError("backward() is for networks without a loss of their own, after outputs()")
        obs, order, length, states = self._last
        self._prepare(&batch, obs, derivatives, order, length, states)
        batch.is_forwarded = batch.n * batch.length <= self._net.block
        self._last = None                   # the backward pass overwrites gates
        self._run(&batch)

    cdef int _run(self, ppo_minibatch *batch) except -1:
        cdef ppo_part part
        part.net, part.batch = &self._net, batch
        with nogil:
            ppo_part_gradient(&part, 0, 0)
        return 0


def compute_parts(list nets, cnp.ndarray obs, cnp.ndarray rows not None, list orders, BlockThreads threads, *,
                  Py_ssize_t length=1, list states=None, Py_ssize_t n_counted=-1, float clip, float value_coeff,
                  float entropy_coeff, value_clip=None, float kl_coeff=0):
    """Overwrite the gradients of each network by its part of a minibatch.

    Args:
        nets: PPOGradients of the same layers, one for each part, at most MOST_PARTS.
        obs: float32 [N length, n_obs].
        rows: float32 [N length, width]: log-probability, advantage, value target, 1 if it counts (else 0), action,
            mask, former logits. Discrete actions are indices below the number of options, which the caller must check.
        orders: of each part: int64 [n], indices of its sequences, below N, which the caller must check.
        threads: they compute the parts; None: this thread alone.
        length: number of rows of each sequence; rows are sequences of 1 for networks without memory.
        states: of each LSTM (h, c) and GRU (h), in order, float32 [N, size]: the states before each sequence.
        n_counted: number of rows that count in the minibatch; -1: count them, if there is a single part.
        clip, value_coeff, entropy_coeff, value_clip, kl_coeff: of the loss, as in RLlib's config.

    Returns:
        Sums for statistics of each part, float64 [parts, sums], in the order of SUMS.
    """
    cdef ppo_minibatch batches[_MOST_PARTS]
    cdef ppo_part parts[_MOST_PARTS]
    cdef double[:, ::1] sums = np.zeros((len(nets), N_SUMS))
    cdef float most_error = INFINITY if value_clip is None else value_clip
    cdef PPOGradient net
    cdef ppo_loss *loss
    cdef Py_ssize_t k, n = len(nets)
    if not n == len(orders) <= _MOST_PARTS or (n > 1 and n_counted < 0):
        raise ValueError(f"expected an order for each of at most {_MOST_PARTS} networks, and n_counted, got {n} "
                         f"networks, {len(orders)} orders and n_counted={n_counted}")
    for k in range(n):
        net, loss = <PPOGradient?>nets[k], &(<PPOGradient?>nets[k])._net.loss
        if loss.kind == GIVEN:
            raise ValueError("this network does not compute PPO's loss")
        net._prepare(&batches[k], obs, rows, orders[k], length, states)
        loss.clip, loss.value_coeff, loss.entropy_coeff, loss.kl_coeff = clip, value_coeff, entropy_coeff, kl_coeff
        loss.most_error = most_error
        batches[k].sums = &sums[k, 0]
        batches[k].weight = 1 / <float>max(1, _n_counted(&batches[k]) if n_counted < 0 else n_counted)
        parts[k].net, parts[k].batch = &net._net, &batches[k]
    with nogil:
        if threads is not None:
            block_threads_run(threads.shared, ppo_part_gradient, parts, n)
        else:
            for k in range(n):
                ppo_part_gradient(parts, 0, k)
    return np.asarray(sums)


cdef Py_ssize_t _n_counted(const ppo_minibatch *batch) noexcept:
    cdef Py_ssize_t i, n = 0
    for i in range(batch.n * batch.length):
        n += batch.rows[(batch.order[i // batch.length] * batch.length + i % batch.length) * batch.width + COUNTS] != 0
    return n


cdef float *_state(states, Py_ssize_t n, Py_ssize_t size) except? NULL:
    """Return the numbers of the next state, [n, size]."""
    array = next(states, None)
    if array is not None:
        return <float*>cnp.PyArray_DATA(_checked(array, cnp.NPY_FLOAT32, (n, size)))
    raise ValueError(f"expected a state of float32 {(n, size)}, got none")


cdef float *_zeros(Py_ssize_t n, list kept) except NULL:
    """Allocate zeros that begin at a cache line, in an array that is appended to a list."""
    array = np.zeros(n + LINE, np.float32)
    kept.append(array)
    cdef size_t address = <size_t>cnp.PyArray_DATA(<cnp.ndarray>array)
    return <float*>((address + 63) // 64 * 64)


cdef Py_ssize_t _stride(Py_ssize_t n):
    """Return the number of floats from row to row.

    It is a multiple of cache lines; for many lines an odd one, so that rows don't compete for the same places in
    the cache.
    """
    cdef Py_ssize_t lines = (n + LINE - 1) // LINE
    return LINE * (lines if lines < 8 else lines | 1)


cdef cnp.ndarray _checked(cnp.ndarray array, int kind, tuple shape):
    """Return the array; raise ValueError unless it is C-contiguous, of this dtype and shape."""
    if cnp.PyArray_TYPE(array) == kind and cnp.PyArray_ISCARRAY_RO(array) and (<object>array).shape == shape:
        return array
    raise ValueError(f"expected {np.dtype(cnp.PyArray_DescrFromType(kind))} {shape}, C-contiguous, got {array.dtype} "
                     f"{(<object>array).shape}")

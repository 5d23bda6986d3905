"""Reads LSTMs and GRUs from an actual forward pass, in which they process entire sequences or single steps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fastmarl.core.nets.dense_layers import Cell, NotDenseError, check_weights
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import Path, flatten_struct

CALLS = (torch.lstm, torch.gru, torch.lstm_cell, torch.gru_cell)


READS = (Tensor.numpy, Tensor.__array__, Tensor.tolist)


class Value:
    """The result of a layer.

    Attributes:
        layer: Index of the layer.
        is_read: True if another layer or an output depends on it.
        is_replaced: True if the result was superseded by another tensor, such as the output of an activation.
    """

    def __init__(self, layer: int):
        self.layer, self.is_read, self.is_replaced = layer, False, False


class State:
    """State of a cell after a step, which only "state_out" and the next step may use."""


class Loop:
    """The steps of an nn.LSTMCell or an nn.GRUCell.

    Attributes:
        layer: Index of the layer.
        source: Inputs of all steps.
        weights: Ids (`id()`) of its weights and biases.
        state: Ids of the state tensors for the next step.
        outputs: Ids of h after each step.
    """

    def __init__(self, layer: int, source: Tensor, weights: list[int]):
        self.layer, self.source, self.weights = layer, source, weights
        self.state: list[int] = []
        self.outputs: list[int] = []


class CellCalls(TorchFunctionMode):
    """Intercepts calls of LSTMs and GRUs in a pass, which torch would list only as individual operations.

    Args:
        call: Function that receives the intercepted function with its arguments, and returns its result.
        refuse: Function that receives the reason why the pass does not consist of layers only.
    """

    def __init__(self, call: Callable[..., Any], refuse: Callable[[str], None]):
        super().__init__()
        self._call, self._refuse = call, refuse

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CALLS and not kwargs:
            return self._call(func, *args)
        if func in READS:  # torch does not list later operations
            self._refuse(f"its forward pass calls Tensor.{func.__name__}()")
        return func(*args, **(kwargs or {}))


class TracedCells:
    """The LSTMs and GRUs of a pass.

    Args:
        states: Input states of the module.
        shape: Shape of the rows, [B, T].
        known: Tensor id -> role of the tensor; outputs of cells are added as `Value`.
        append: Function that appends a layer, given its source, weight, bias and cell, and returns its index.
    """

    def __init__(self, states: Any, shape: torch.Size, known: dict[int, Any], append: Callable[..., int]):
        self._states = {id(leaf): path for path, leaf in flatten_struct(states)}
        self._shape, self._known, self._append = shape, known, append
        self._time_first: dict[int, Tensor] = {}  # tensors whose transposed view has this identity
        self._values: dict[int, Value] = {}  # results with time as the first axis
        self._slices: dict[int, Tensor] = {}  # slices that contain everything
        self._at_step: dict[int, tuple[Tensor, int]] = {}  # single steps of sequences
        self._loops: list[Loop] = []

    def take(self, func: Any, out: Any, *args: Any) -> None:
        """Record a call of a function in `CALLS`, and its result."""
        kind, call = (
            func.__name__.removesuffix("_cell"),
            self._step if func.__name__.endswith("_cell") else self._sequence,
        )
        call(kind, out, *args)
        after = out[1:] if call == self._sequence else [out] if isinstance(out, Tensor) else out
        self._known.update((id(each), State()) for each in after)

    def _sequence(self, kind: str, out: Any, source: Tensor, state: Any, weights: Any, *options: Any) -> None:
        """Record an LSTM or a GRU that computes all steps."""
        if isinstance(state, Tensor) != (kind == "gru") or len(options) != 6 or not isinstance(weights, (list, tuple)):
            raise NotDenseError(f"its {kind} reads packed sequences")
        _, n_layers, _, _, is_bidirectional, is_batch_first = options
        if n_layers != 1 or is_bidirectional or len(weights) not in (2, 4):
            raise NotDenseError(f"its {kind} has several layers or directions, or projections")
        read = source if is_batch_first else self._time_first.get(id(source))
        states = [state] if kind == "gru" else [*state]
        value = Value(self._add(kind, read, states, weights))
        (self._known if is_batch_first else self._values)[id(out[0])] = value

    def _step(self, kind: str, out: Any, source: Tensor, state: Any, *weights: Any) -> None:
        """Record a step of a cell, which continues from its previous step or starts with the module state."""
        read, t = self._at_step.get(id(source), (None, 0))
        before, after = ([state], [out]) if kind == "gru" else ([*state], [*out])
        identities, used = [*map(id, before)], [*map(id, weights)]
        loop = next((each for each in self._loops if each.state == identities and each.weights == used), None)
        if loop is None:
            loop = Loop(self._add(kind, read, before, weights), source if read is None else read, used)
            self._loops.append(loop)
        if read is not loop.source or t != len(loop.outputs):
            raise NotDenseError(f"its {kind} does not read one step after the other")
        loop.state = [*map(id, after)]
        loop.outputs.append(loop.state[0])

    def _add(self, kind: str, source: Tensor | None, states: list[Tensor], weights: Any) -> int:
        """Append a cell that starts with these states; return its index."""
        paths = [self._states.get(id(each)) for each in states]
        known: tuple[Path, ...] = tuple(path for path in paths if path is not None)
        if len(known) < len(paths) or source is None or source.shape[:-1] != self._shape:
            raise NotDenseError(f"its {kind} does not start from {Columns.STATE_IN!r}, or does not process all steps")
        weight, state_weight, bias, state_bias = (*weights, None, None)[:4]
        n, size = source.shape[-1], states[0].shape[-1]
        n_gates = (4 if kind == "lstm" else 3) * size
        for each, n_in in ((weight, (n,)), (state_weight, (size,)), (bias, ()), (state_bias, ())):
            if each is not None:
                check_weights(each, (n_gates, *n_in), f"a weight of the {kind}")
        return self._append(source, weight, bias, Cell(kind, state_weight, state_bias, known))

    def stack(self, func: Any, out: Tensor, parts: list[Tensor], dim: int) -> None:
        """Record the stacking of the outputs of all steps of a loop."""
        for loop in self._loops:
            if [*map(id, parts)] == loop.outputs and len(parts) == self._shape[-1] and dim in (0, 1, -2, -3):
                (self._known if dim in (1, -2) else self._values)[id(out)] = Value(loop.layer)
                return
        raise NotDenseError(f"its forward pass has {func}")

    def change_axes(self, func: Any, out: Tensor, source: Tensor, *dims: Any) -> None:
        """Record an operation that swaps the first two axes of a 3-D tensor."""
        if dims not in ((0, 1), (1, 0), ([1, 0, 2],)):
            raise NotDenseError(f"its forward pass has {func}")
        if id(source) in self._values:
            self._known[id(out)] = self._values[id(source)]
        elif 1 not in source.shape[:2] or not self.view(func, out, source):
            self._time_first[id(out)] = source

    def view(self, func: Any, out: Tensor, source: Tensor, *args: Any) -> bool:
        """Record an operation whose result is a view of a state or a single step; return False for any other view."""
        if isinstance(self._known.get(id(source)), State):
            self._known[id(out)] = State()
        elif id(source) in self._states and out.numel() == source.numel():
            self._states[id(out)] = self._states[id(source)]
        elif func is torch.ops.aten.select.int and len(self._shape) == 2 == args[0] + 1 and source.dim() == 3:
            self._at_step[id(out)] = self._slices.get(id(source), source), args[1]
        elif func is torch.ops.aten.slice.Tensor and out.shape == source.shape:  # before a step, in torch 2.6
            self._slices[id(out)] = self._slices.get(id(source), source)
            return False
        else:
            return False
        return True

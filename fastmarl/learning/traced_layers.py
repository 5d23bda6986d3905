"""Reads the layers of a module from the operations and tensors that torch lists during an actual forward pass."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastmarl.core.modules.base import RLModule
from fastmarl.core.nets.dense_layers import OBSERVATIONS, Cell, DenseLayers, Layer, NotDenseError, check_weights
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.learning.dense_nets import DenseNet
from fastmarl.learning.traced_cells import CellCalls, TracedCells, Value

aten = torch.ops.aten
ACTIVATIONS = {
    aten.tanh.default: nn.Tanh, aten.relu.default: nn.ReLU, aten.silu.default: nn.SiLU, aten.gelu.default: nn.GELU,
    aten.elu.default: nn.ELU, aten.tanh_.default: nn.Tanh, aten.relu_.default: nn.ReLU, aten.silu_.default: nn.SiLU,
    aten.gelu_.default: nn.GELU, aten.elu_.default: nn.ELU,
}  # fmt: skip


class Gaussian(NamedTuple):
    """A tensor of means, concatenated with log standard deviations that are the same in each row."""

    means: int
    log_std: Tensor


def read_layers(module: RLModule, inputs: Mapping[str, Any]) -> tuple[DenseNet, tuple[Any, ...]]:
    """Run a forward pass of the module and read its layers.

    Args:
        module: Module without side effects, or a copy.
        inputs: Columns for `_forward_train()` with at least 2 rows; for recurrent modules, with states and at least 2
            sequences, whose number differs from their length.

    Returns:
        The layers, and the path of the observation array they read.

    Raises:
        NotDenseError: If the pass contains other operations, or fails.
    """
    reader = _Reader(inputs[Columns.OBS], inputs.get(Columns.STATE_IN, {}))
    try:
        with torch.enable_grad(), reader, CellCalls(reader.call_cell, reader.refuse):
            outputs = module._forward_train(dict(inputs))
    except Exception as error:  # module code may raise anything
        if reader.reason is None:
            raise NotDenseError(f"its forward pass fails: {type(error).__name__}: {error}") from None
    if reader.reason is not None:
        raise NotDenseError(reader.reason)
    return reader.net(outputs)


class _Reader(TorchDispatchMode):
    """Records the operations of a forward pass one by one.

    Tensors are identified by `id()`, so operations that torch does not list, such as `x.data`, produce unknown tensors.

    Attributes:
        reason: Why the pass does not consist of layers only; None if it does.
    """

    def __init__(self, obs: Any, states: Any):
        super().__init__()
        self.reason: str | None = None
        self._is_paused = False
        self._paths = {id(leaf): path for path, leaf in flatten_struct(obs)}
        self._shape: torch.Size = flatten_struct(obs)[0][1].shape[: 2 if flatten_struct(states) else 1]  # [B, T] or [B]
        self._known: dict[int, Any] = {}  # Value, Gaussian, index of a squeezed layer, or a broadcast Parameter
        self._turned: dict[int, Tensor] = {}  # transposed weights
        self._cells = TracedCells(states, self._shape, self._known, self._append_cell)
        self._kept: list[Any] = [(obs, states)]  # so that no other tensor gets the id of a known one
        self._obs_path: tuple[Any, ...] = ()
        self._layers: DenseLayers | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self._is_paused:
            self._take(OPERATIONS.get(func), func, out, *args, **(kwargs or {}))
        return out

    def refuse(self, reason: str) -> None:
        self.reason = self.reason or reason

    def call_cell(self, func: Any, *args: Any) -> Any:
        """Call torch.lstm(), torch.gru(), or a cell function, and record it as a single operation."""
        self._is_paused = True
        try:
            out = func(*args)
        finally:
            self._is_paused = False
        self._take(_Reader.remember, func, out, *args)
        return out

    def remember(self, func: Any, out: Any, *args: Any) -> None:
        self._cells.take(func, out, *args)

    def stack(self, func: Any, out: Tensor, parts: list[Tensor], dim: int = 0) -> None:
        self._cells.stack(func, out, parts, dim)

    def _append_cell(self, source: Tensor, weight: Tensor, bias: Tensor | None, cell: Cell) -> int:
        """Append a cell that reads `source`; return its index."""
        before = self._read_any(source)
        assert self._layers is not None
        return self._layers.append(Layer(before, weight, bias, cell=cell), cell.weight.shape[1])

    def _take(self, operation: Callable[..., None] | None, func: Any, out: Any, *args: Any, **kwargs: Any) -> None:
        if self.reason is not None:  # the pass continues, so that all of its side effects occur
            return
        self._kept.append((args, out))
        try:
            self._check(func)
            if operation is None:
                raise NotDenseError(f"its forward pass has {func}")
            operation(self, func, out, *args, **kwargs)
        except NotDenseError as error:
            self.reason = str(error)

    def _check(self, func: Any) -> None:
        if torch.is_autocast_enabled("cpu"):
            raise NotDenseError("its forward pass uses torch.autocast()")
        if not torch.is_grad_enabled():
            raise NotDenseError(f"its forward pass has {func} under torch.no_grad(), or in a torch.autograd.Function")

    def turn(self, func: Any, out: Tensor, weight: Tensor, *dims: Any) -> None:
        """Record the transpose of a weight, or of the first two axes of a 3-D tensor."""
        if weight.dim() == 3:
            self._cells.change_axes(func, out, weight, *dims)
            return
        if weight.dim() != 2 or out.shape != weight.shape[::-1] or out.stride() != weight.stride()[::-1]:
            raise NotDenseError(f"its forward pass has {func}")
        check_weights(weight, tuple(weight.shape), "the weight of a layer")
        self._turned[id(out)] = weight

    def bias_and_multiply(self, func: Any, out: Tensor, bias: Tensor, source: Tensor, turned: Tensor) -> None:
        check_weights(bias, out.shape[1:], "the bias of a layer")
        self._linear(out, source, turned, bias)

    def multiply(self, func: Any, out: Tensor, source: Tensor, turned: Tensor) -> None:
        self._linear(out, source, turned, None)

    def _linear(self, out: Tensor, source: Tensor, turned: Tensor, bias: Tensor | None) -> None:
        weight = self._turned.get(id(turned))
        if weight is None:
            raise NotDenseError("a layer in it has no weight")
        before = self._read_any(source)
        assert self._layers is not None
        self._known[id(out)] = Value(self._layers.append(Layer(before, weight, bias), len(weight)))

    def _read_any(self, source: Tensor) -> int:
        """Return the index of the layer that computed `source`, or OBSERVATIONS."""
        return self._read_observations(source) if id(source) in self._paths else self._read(source)

    def _read_observations(self, source: Tensor) -> int:
        path = self._paths[id(source)]
        if self._layers is None:
            self._obs_path, self._layers = path, DenseLayers(source.shape[-1])
        elif path != self._obs_path:
            raise NotDenseError("its layers do not read the same array of the observations")
        return OBSERVATIONS

    def _read(self, source: Any) -> int:
        """Return the index of the layer that computed `source`."""
        value = self._known.get(id(source))
        if not isinstance(value, Value):
            raise NotDenseError("a layer in it does not follow another one")
        self._check_current(value)
        value.is_read = True
        return value.layer

    def _check_current(self, value: Value) -> None:
        if value.is_replaced:
            raise NotDenseError("an activation in it is not the only one to read a linear layer")

    def activate(self, func: Any, out: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> None:
        value, kind = self._known.get(id(source)), ACTIVATIONS[func]
        if not isinstance(value, Value) or self._layers is None:
            raise NotDenseError(f"a {kind.__name__} in it does not follow a layer")
        layer = self._layers.layers[value.layer]
        if value.is_read or value.is_replaced or layer.activation != "linear" or layer.cell is not None:
            raise NotDenseError(f"a {kind.__name__} in it is not the only one to read a linear layer")
        part = kind(*args, **kwargs) if len(args) < 2 else None
        if part is None or getattr(part, "approximate", "none") != "none":
            raise NotDenseError(f"no compiled kernel for {func} with {args} {kwargs}")
        self._layers.activate(value.layer, part)
        if out is not source:
            value.is_replaced = True
            self._known[id(out)] = Value(value.layer)

    def add_bias(self, func: Any, out: Tensor, source: Tensor, bias: Tensor, *args: Any, **kwargs: Any) -> None:
        """Record the addition of a bias, which torch lists separately if layer inputs are not contiguous."""
        value = self._known.get(id(source))
        if not isinstance(value, Value) or args or kwargs or value.is_read or value.is_replaced or self._layers is None:
            raise NotDenseError(f"its forward pass has {func}")
        layer = self._layers.layers[value.layer]
        if layer.bias is not None or layer.activation != "linear" or layer.cell is not None:
            raise NotDenseError(f"its forward pass has {func}")
        check_weights(bias, (self._layers.n_out(value.layer),), "the bias of a layer")
        self._layers.layers[value.layer] = layer._replace(bias=bias)
        value.is_replaced = True
        self._known[id(out)] = Value(value.layer)

    def view(self, func: Any, out: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> None:
        """Record a view of the same values; raise NotDenseError for any other view."""
        value, is_same = self._known.get(id(source)), self._is_same(func, out, source)
        if self._cells.view(func, out, source, *args):
            return
        if id(source) in self._paths and is_same:
            self._paths[id(out)] = self._paths[id(source)]
        elif isinstance(value, Value) and not is_same and (*out.shape, 1) == source.shape:
            self._known[id(out)] = self._read(source)
        elif is_same and value is not None:
            self._known[id(out)] = value
        elif isinstance(source, nn.Parameter) or isinstance(value, nn.Parameter):
            row: Any = source if isinstance(source, nn.Parameter) else value
            if row.dim() != 1 or out.shape[-1] != len(row) or out.dim() > 3 or out.stride(-1) != row.stride(-1):
                raise NotDenseError(f"its forward pass has {func} of a parameter")
            self._known[id(out)] = row
        else:
            raise NotDenseError(f"its forward pass has {func}")

    def _is_same(self, func: Any, out: Tensor, source: Tensor) -> bool:
        """Return True if `out` contains the rows of `source`, unchanged or with sequences flattened or unflattened."""
        if out.shape == source.shape and out.stride() == source.stride():
            return True
        shapes = {out.shape[:-1], source.shape[:-1]}
        in_order = func in RESHAPES and out.is_contiguous() and source.is_contiguous()
        return in_order and out.shape[-1] == source.shape[-1] and shapes == {self._shape, (self._shape.numel(),)}

    def copy(self, func: Any, out: Tensor, source: Tensor, **kwargs: Any) -> None:
        """Record a copy of a state, or of cell outputs in another memory layout."""
        value = self._known.get(id(source))
        is_cell = isinstance(value, Value) and self._layers is not None and self._layers.layers[value.layer].cell
        if not is_cell and not self._cells.view(func, out, source):
            raise NotDenseError(f"its forward pass has {func}")
        if is_cell:
            self._known[id(out)] = value

    def ignore(self, func: Any, out: Any, *args: Any, **kwargs: Any) -> None:
        """Ignore a detach(), by which autograd saves results; if the module uses its result, that tensor is unknown."""

    def join(self, func: Any, out: Tensor, parts: list[Tensor], dim: int = 0) -> None:
        means, log_std = (*parts, None)[:2] if len(parts) == 2 else (None, None)
        row = self._known.get(id(log_std))
        if not isinstance(row, nn.Parameter) or dim not in (-1, out.dim() - 1) or not isinstance(log_std, Tensor):
            raise NotDenseError(f"its forward pass has {func}")
        check_weights(row, log_std.shape[-1:], "the row of standard deviations")
        self._known[id(out)] = Gaussian(self._read(means), row)

    def net(self, outputs: Mapping[str, Any]) -> tuple[DenseNet, tuple[Any, ...]]:
        """Return the network of the outputs, and the path of the observation array that it reads."""
        if any(each._backward_hooks for each in self._tensors()):
            raise NotDenseError("its forward pass registers hooks")
        if Columns.ACTION_MASK in outputs:
            raise NotDenseError(f"it outputs {Columns.ACTION_MASK!r}")
        logits, values = (
            self._known.get(id(outputs.get(name))) for name in (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS)
        )
        if self._layers is None or not isinstance(logits, (Value, Gaussian)):
            raise NotDenseError(f"{Columns.ACTION_DIST_INPUTS!r} is not the output of a layer")
        if isinstance(logits, Value):
            self._check_current(logits)
        if Columns.VF_PREDS in outputs and not isinstance(values, int):
            raise NotDenseError(f"{Columns.VF_PREDS!r} is not the single output of a layer, squeezed")
        place, log_std = (logits.layer, None) if isinstance(logits, Value) else logits
        if log_std is not None and log_std.shape != (self._layers.n_out(place),):
            raise NotDenseError("its standard deviations do not have the shape of its means")
        place_of_values = OBSERVATIONS if values is None else values
        net = DenseNet(self._layers.n_out(OBSERVATIONS), self._layers.layers, place, place_of_values, None, log_std)
        return net, self._obs_path

    def _tensors(self) -> list[Tensor]:
        results = [each for _, out in self._kept[1:] for each in (out if isinstance(out, (list, tuple)) else (out,))]
        return [each for each in results if isinstance(each, Tensor)]


RESHAPES = (aten.view.default, aten._unsafe_view.default)
VIEWS = (
    *RESHAPES, aten.select.int, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default, aten.expand.default, aten.alias.default, aten.slice.Tensor,
)  # fmt: skip
OPERATIONS: dict[Any, Callable[..., None]] = {
    **dict.fromkeys((aten.t.default, aten.permute.default, aten.transpose.int), _Reader.turn),
    aten.addmm.default: _Reader.bias_and_multiply,
    aten.mm.default: _Reader.multiply,
    aten.detach.default: _Reader.ignore,
    aten.add.Tensor: _Reader.add_bias,
    aten.cat.default: _Reader.join,
    aten.clone.default: _Reader.copy,
    aten.stack.default: _Reader.stack,
    **dict.fromkeys(ACTIVATIONS, _Reader.activate),
    **dict.fromkeys(VIEWS, _Reader.view),
}

"""Reads layers from a real pass of a module, whose operations torch lists with their tensors."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastmarl.core.modules.base import RLModule
from fastmarl.core.nets.dense_layers import OBSERVATIONS, DenseLayers, Layer, NotDenseError, check_weights
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.learning.dense_nets import DenseNet

aten = torch.ops.aten
ACTIVATIONS = {
    aten.tanh.default: nn.Tanh, aten.relu.default: nn.ReLU, aten.silu.default: nn.SiLU, aten.gelu.default: nn.GELU,
    aten.elu.default: nn.ELU, aten.tanh_.default: nn.Tanh, aten.relu_.default: nn.ReLU, aten.silu_.default: nn.SiLU,
    aten.gelu_.default: nn.GELU, aten.elu_.default: nn.ELU,
}  # fmt: skip


class Value:
    """The result of a layer.

    Attributes:
        layer: Index of the layer.
        is_read: Another layer or an output depends on it.
        is_replaced: The layer got an activation, whose result is another tensor.
    """

    def __init__(self, layer: int):
        self.layer, self.is_read, self.is_replaced = layer, False, False


class Gaussian(NamedTuple):
    """Means beside logarithms of standard deviations, which are the same in each row."""

    means: int
    log_std: Tensor


def read_layers(module: RLModule, inputs: Mapping[str, Any]) -> tuple[DenseNet, tuple[Any, ...]]:
    """Run a pass of the module, and read its layers.

    Args:
        module: Module that does nothing else than to compute its outputs, or a copy of it.
        inputs: Columns for `_forward_train()`, with at least 2 rows.

    Returns:
        The layers, and the path of the array among the observations that they read.

    Raises:
        NotDenseError: If the pass has other operations, or fails.
    """
    reader = _Reader(inputs[Columns.OBS])
    try:
        with torch.enable_grad(), reader:
            outputs = module._forward_train(dict(inputs))
    except Exception as error:  # module code may raise anything
        if reader.reason is None:
            raise NotDenseError(f"its forward pass fails: {type(error).__name__}: {error}") from None
    if reader.reason is not None:
        raise NotDenseError(reader.reason)
    return reader.net(outputs)


class _Reader(TorchDispatchMode):
    """Takes the operations of a pass one by one.

    Tensors are known by their identity: what torch does not list, such as `x.data`, makes an unknown one.

    Attributes:
        reason: Why the pass consists of more than layers; None if it does not.
    """

    def __init__(self, obs: Any):
        super().__init__()
        self.reason: str | None = None
        self._paths = {id(leaf): path for path, leaf in flatten_struct(obs)}
        self._known: dict[int, Any] = {}  # Value, Gaussian, index of a squeezed layer, or a Parameter that is spread
        self._turned: dict[int, Tensor] = {}  # transposed weights
        self._kept: list[Any] = [obs]  # no other tensor gets the id of a known one
        self._obs_path: tuple[Any, ...] = ()
        self._layers: DenseLayers | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.reason is None:  # otherwise the pass goes on, so that it has all of its side effects
            self._kept.append((args, out))
            try:
                self._check(func)
                OPERATIONS[func](self, func, out, *args, **(kwargs or {}))
            except NotDenseError as error:
                self.reason = str(error)
        return out

    def _check(self, func: Any) -> None:
        if torch.is_autocast_enabled("cpu"):
            raise NotDenseError("its forward pass uses torch.autocast()")
        if not torch.is_grad_enabled():
            raise NotDenseError(f"its forward pass has {func} under torch.no_grad(), or in a torch.autograd.Function")
        if func not in OPERATIONS:
            raise NotDenseError(f"its forward pass has {func}")

    def turn(self, func: Any, out: Tensor, weight: Tensor, *dims: Any) -> None:
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
        before = self._read(source) if id(source) not in self._paths else self._read_observations(source)
        assert self._layers is not None
        self._known[id(out)] = Value(self._layers.append(Layer(before, weight, bias), len(weight)))

    def _read_observations(self, source: Tensor) -> int:
        path = self._paths[id(source)]
        if self._layers is None:
            self._obs_path, self._layers = path, DenseLayers(source.shape[1])
        elif path != self._obs_path:
            raise NotDenseError("its layers do not read the same array of the observations")
        return OBSERVATIONS

    def _read(self, source: Any) -> int:
        """Return the index of the layer whose result this is."""
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
        if value.is_read or value.is_replaced or self._layers.layers[value.layer].activation != "linear":
            raise NotDenseError(f"a {kind.__name__} in it is not the only one to read a linear layer")
        part = kind(*args, **kwargs) if len(args) < 2 else None
        if part is None or getattr(part, "approximate", "none") != "none":
            raise NotDenseError(f"no compiled kernel for {func} with {args} {kwargs}")
        self._layers.activate(value.layer, part)
        if out is not source:
            value.is_replaced = True
            self._known[id(out)] = Value(value.layer)

    def view(self, func: Any, out: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> None:
        """Take a view, which is known if it shows the same numbers; other views must not be used."""
        value, is_same = self._known.get(id(source)), out.shape == source.shape and out.stride() == source.stride()
        if id(source) in self._paths and is_same:
            self._paths[id(out)] = self._paths[id(source)]
        elif (
            isinstance(value, Value)
            and not is_same
            and source.shape == (len(source), 1)
            and out.shape == (len(source),)
        ):
            self._known[id(out)] = self._read(source)
        elif is_same and value is not None:
            self._known[id(out)] = value
        elif isinstance(source, nn.Parameter) or isinstance(value, nn.Parameter):
            row: Any = source if isinstance(source, nn.Parameter) else value
            if row.dim() != 1 or out.shape[-1] != len(row) or out.dim() > 2 or out.stride(-1) != row.stride(-1):
                raise NotDenseError(f"its forward pass has {func} of a parameter")
            self._known[id(out)] = row
        else:
            raise NotDenseError(f"its forward pass has {func}")

    def ignore(self, func: Any, out: Any, *args: Any, **kwargs: Any) -> None:
        """Take an operation by which autograd saves a result; what a module makes of it is not known."""

    def join(self, func: Any, out: Tensor, parts: list[Tensor], dim: int = 0) -> None:
        means, log_std = (*parts, None)[:2] if len(parts) == 2 else (None, None)
        row = self._known.get(id(log_std))
        if not isinstance(row, nn.Parameter) or dim not in (-1, 1) or not isinstance(log_std, Tensor):
            raise NotDenseError(f"its forward pass has {func}")
        check_weights(row, log_std.shape[1:], "the row of standard deviations")
        self._known[id(out)] = Gaussian(self._read(means), row)

    def net(self, outputs: Mapping[str, Any]) -> tuple[DenseNet, tuple[Any, ...]]:
        """Return the layers on which the outputs depend, and the path of the observations that they read."""
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


VIEWS = (
    aten.view.default, aten._unsafe_view.default, aten.select.int, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default, aten.expand.default, aten.alias.default, aten.slice.Tensor,
)  # fmt: skip
OPERATIONS: dict[Any, Callable[..., None]] = {
    **dict.fromkeys((aten.t.default, aten.permute.default, aten.transpose.int), _Reader.turn),
    aten.addmm.default: _Reader.bias_and_multiply,
    aten.mm.default: _Reader.multiply,
    aten.detach.default: _Reader.ignore,
    aten.cat.default: _Reader.join,
    **dict.fromkeys(ACTIVATIONS, _Reader.activate),
    **dict.fromkeys(VIEWS, _Reader.view),
}

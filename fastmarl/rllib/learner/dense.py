"""Layers with their derivatives written out in torch's operations, and so in its bits: no graph, no autograd."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Gradients = dict[Tensor, Tensor]  # where each parameter's gradient is to be written
Backward = Callable[[Any, Tensor, Tensor, Tensor], Any]  # (layer, derivatives by outputs, inputs, outputs), in place

_aten = torch.ops.aten


FORWARDS: dict[type, Callable[[Any, Tensor, Tensor], Any]] = {
    nn.Tanh: lambda _, before, outputs: torch.tanh_(outputs),  # the same memory
    nn.ReLU: lambda _, before, outputs: torch.relu_(outputs),
    nn.SiLU: lambda _, before, outputs: _aten.silu.out(before, out=outputs),
    nn.ELU: lambda layer, before, outputs: _aten.elu.out(before, layer.alpha, out=outputs),
    nn.GELU: lambda layer, before, outputs: _aten.gelu.out(before, approximate=layer.approximate, out=outputs),
}
BACKWARDS: dict[type, Backward] = {
    nn.Tanh: lambda _, d, before, outputs: _aten.tanh_backward.grad_input(d, outputs, grad_input=d),
    nn.ReLU: lambda _, d, before, outputs: _aten.threshold_backward.grad_input(d, outputs, 0, grad_input=d),
    nn.SiLU: lambda _, d, before, outputs: _aten.silu_backward.grad_input(d, before, grad_input=d),
    nn.ELU: lambda layer, d, before, outputs: _aten.elu_backward.grad_input(
        d, layer.alpha, 1.0, 1.0, False, before, grad_input=d
    ),
    nn.GELU: lambda layer, d, before, outputs: _aten.gelu_backward.grad_input(
        d, before, approximate=layer.approximate, grad_input=d
    ),
}
IN_PLACE = (nn.Tanh, nn.ReLU)  # their derivatives follow from their outputs


def memory(*shape: int) -> Tensor:
    """Of floats, whatever torch's defaults are; what is in it is not known."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


class DenseLayer:
    """A linear layer, and the activation behind it.

    Args:
        linear: its parameters are read where they are, at each call.
        activation: one of BACKWARDS, or None.
        n_rows: of a minibatch.
        gradients: of its parameters, which `backward()` overwrites.
        outputs: where outputs go; None: memory of its own.

    Attributes:
        outputs: [n_rows, n_out], of the last `forward()`.
    """

    def __init__(
        self,
        linear: nn.Linear,
        activation: nn.Module | None,
        n_rows: int,
        gradients: Gradients,
        outputs: Tensor | None = None,
    ):
        self._weight = linear.weight.detach()
        self._turned = self._weight.t()
        bias: Tensor | None = linear.bias
        self._bias = None if bias is None else bias.detach()
        self._weight_gradient = gradients[linear.weight]
        self._bias_gradient = None if bias is None else gradients[bias]
        self._activation = activation
        self._activate = FORWARDS.get(type(activation))
        self.outputs = memory(n_rows, linear.out_features) if outputs is None else outputs
        is_in_place = activation is None or type(activation) in IN_PLACE
        self._before = self.outputs if is_in_place else torch.empty_like(self.outputs)
        self._by_inputs = memory(n_rows, linear.in_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """From inputs [n_rows, n_in] to `outputs`."""
        if self._bias is None:
            torch.mm(inputs, self._turned, out=self._before)
        else:
            torch.addmm(self._bias, inputs, self._turned, out=self._before)
        if self._activate is not None:
            self._activate(self._activation, self._before, self.outputs)
        return self.outputs

    def backward(self, inputs: Tensor, derivatives: Tensor, is_first: bool) -> Tensor:
        """From derivatives by outputs, which are overwritten, to those by inputs, unless it is the first layer."""
        if self._activation is not None:
            BACKWARDS[type(self._activation)](self._activation, derivatives, self._before, self.outputs)
        torch.mm(derivatives.t(), inputs, out=self._weight_gradient)
        if self._bias_gradient is not None:
            torch.sum(derivatives, 0, out=self._bias_gradient)
        if not is_first:
            torch.mm(derivatives, self._weight, out=self._by_inputs)
        return self._by_inputs


class DenseStack:
    """Layers one after the other.

    Args:
        layers: at least one.
        is_first: whether nobody needs derivatives by its inputs.
    """

    def __init__(self, layers: list[DenseLayer], is_first: bool):
        self._layers = layers
        self._is_first = is_first
        self._inputs: list[Tensor] = []  # of each layer, in the last `forward()`

    @property
    def outputs(self) -> Tensor:
        """[n_rows, n_out], of the last `forward()`."""
        return self._layers[-1].outputs

    def forward(self, inputs: Tensor) -> Tensor:
        """From inputs [n_rows, n_in] to `outputs`."""
        self._inputs = []
        for layer in self._layers:
            self._inputs.append(inputs)
            inputs = layer.forward(inputs)
        return inputs

    def backward(self, derivatives: Tensor) -> Tensor:
        """From derivatives by outputs, which are overwritten, to those by inputs."""
        for k in reversed(range(len(self._layers))):
            is_first = self._is_first and k == 0
            derivatives = self._layers[k].backward(self._inputs[k], derivatives, is_first)
        return derivatives


def layers_of(
    sequence: nn.Sequential,
    n_rows: int,
    gradients: Gradients,
    last_outputs: Tensor | None = None,
) -> list[DenseLayer]:
    """The layers of a sequence of which `is_dense()` is true.

    Args:
        last_outputs: where those of the last layer go; None: memory of its own.
    """
    parts, found = list(sequence), []
    for k, part in enumerate(parts):
        if type(part) is nn.Linear:
            follower = parts[k + 1] if k + 1 < len(parts) and type(parts[k + 1]) is not nn.Linear else None
            is_last = k + 1 + (follower is not None) == len(parts)
            outputs = last_outputs if is_last else None
            found.append(DenseLayer(part, follower, n_rows, gradients, outputs))
    return found


def is_dense(sequence: nn.Sequential) -> bool:
    """Whether these are linear layers with no more than one activation behind each, of those known here."""
    follows_linear = False
    for part in sequence:
        if type(part) is not nn.Linear and not (follows_linear and type(part) in BACKWARDS):
            return False
        follows_linear = type(part) is nn.Linear
    return len(sequence) > 0

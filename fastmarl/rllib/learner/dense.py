"""Dense layers with derivatives written out in torch operations: bit-identical to autograd, without a graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Gradients = dict[Tensor, Tensor]  # parameter -> memory for its gradient
Backward = Callable[[Any, Tensor, Tensor, Tensor], Any]  # (layer, output derivatives, inputs, outputs), in place

_aten = torch.ops.aten


FORWARDS: dict[type, Callable[[Any, Tensor, Tensor], Any]] = {
    nn.Tanh: lambda _, before, outputs: torch.tanh_(outputs),  # in place: `before` and `outputs` share memory
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
IN_PLACE = (nn.Tanh, nn.ReLU)  # their derivatives are functions of their outputs


def memory(*shape: int) -> Tensor:
    """Allocate uninitialised float32 memory on the CPU, regardless of torch defaults."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


class DenseLayer:
    """A linear layer and the activation after it.

    Args:
        linear: The linear layer, whose current parameters are read at each call.
        activation: A layer of a type in BACKWARDS, or None.
        n_rows: Number of rows in a minibatch.
        gradients: Memory for the gradients of the parameters, overwritten by `backward()`.
        outputs: Memory for the outputs, or None to allocate it.

    Attributes:
        outputs: Outputs of the last `forward()`, [n_rows, n_out].
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
        """Compute `outputs` from inputs [n_rows, n_in]."""
        if self._bias is None:
            torch.mm(inputs, self._turned, out=self._before)
        else:
            torch.addmm(self._bias, inputs, self._turned, out=self._before)
        if self._activate is not None:
            self._activate(self._activation, self._before, self.outputs)
        return self.outputs

    def backward(self, inputs: Tensor, derivatives: Tensor, is_first: bool) -> Tensor:
        """Compute gradients and, unless `is_first`, input derivatives, overwriting the output derivatives."""
        if self._activation is not None:
            BACKWARDS[type(self._activation)](self._activation, derivatives, self._before, self.outputs)
        torch.mm(derivatives.t(), inputs, out=self._weight_gradient)
        if self._bias_gradient is not None:
            torch.sum(derivatives, 0, out=self._bias_gradient)
        if not is_first:
            torch.mm(derivatives, self._weight, out=self._by_inputs)
        return self._by_inputs


class DenseStack:
    """A sequence of dense layers.

    Args:
        layers: One or more layers.
        is_first: True if the derivatives with respect to the inputs of the stack are not needed.
    """

    def __init__(self, layers: list[DenseLayer], is_first: bool):
        self._layers = layers
        self._is_first = is_first
        self._inputs: list[Tensor] = []  # inputs of each layer in the last `forward()`

    @property
    def outputs(self) -> Tensor:
        """Outputs of the last `forward()`, [n_rows, n_out]."""
        return self._layers[-1].outputs

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute `outputs` from inputs [n_rows, n_in]."""
        self._inputs = []
        for layer in self._layers:
            self._inputs.append(inputs)
            inputs = layer.forward(inputs)
        return inputs

    def backward(self, derivatives: Tensor) -> Tensor:
        """Compute gradients and return the input derivatives, overwriting the output derivatives."""
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
    """Return a `DenseLayer` for each linear layer of a sequence for which `is_dense()` returns True.

    Args:
        sequence: Linear layers and activations.
        n_rows: Number of rows in a minibatch.
        gradients: Memory for the gradients of the parameters.
        last_outputs: Memory for the outputs of the last layer, or None to allocate it.
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
    """Return True if the sequence has only linear layers, each followed by at most one activation in BACKWARDS."""
    follows_linear = False
    for part in sequence:
        if type(part) is not nn.Linear and not (follows_linear and type(part) in BACKWARDS):
            return False
        follows_linear = type(part) is nn.Linear
    return len(sequence) > 0

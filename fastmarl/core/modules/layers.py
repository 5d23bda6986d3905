"""Sequential layers with low call overhead, which dominates the cost of small networks during sampling."""

from typing import Any

import torch
from torch import Tensor, nn

_linear = torch._C._nn.linear  # the implementation of torch.nn.functional.linear


class Chain(nn.Sequential):
    """An `nn.Sequential` with less overhead but the same parameter names and results."""

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self._modules.values():
            inputs = call(layer, inputs)
        return inputs


def call(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Return `layer(inputs)`, bypassing `__call__` if the layer has no hooks and is not compiled."""
    if (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or layer._compiled_call_impl
    ):
        return layer(inputs)
    if type(layer) is nn.Linear:
        parameters: dict[str, Any] = layer._parameters
        return _linear(inputs, parameters["weight"], parameters["bias"])
    return layer.forward(inputs)

"""A single LSTM step in torch, with weights kept in oneDNN's memory layout.

torch reorders the weights in every call. For a few rows, this takes longer than the step; for a single row, ten times
as long. torch still computes the step, so results are bit-identical.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fastmarl.rllib.inference.plain_modules import is_plain_part

N_PROBED = 64  # elements of each matrix that are compared before each step
TRIED_ROWS = (1, 2, 7, 33)
LSTM_MODE = 2  # torch numbers recurrent layers: ReLU RNN, tanh RNN, LSTM, GRU


class LSTMStep:
    """Computes `layer` on sequences of length 1 in evaluation mode. Must be called without gradients.

    Args:
        layer: Single-layer LSTM with biases, whose parameters must not be replaced. In-place changes take effect in the
            next call if they change torch's version counters or one of `N_PROBED` elements of each matrix.
    """

    def __init__(self, layer: nn.LSTM):
        self._layer = layer
        self._weights: list[Any] = layer._flat_weights
        self._packed: list[Tensor] = []
        self._mark: tuple = ()
        self._packs = _can_pack(layer) and is_exact(layer.input_size, layer.hidden_size)
        if self._packs:
            flat = [weights.detach().view(-1) for weights in self._weights[:2]]
            self._probes = [each[:: max(1, len(each) // N_PROBED)].numpy() for each in flat]

    def __call__(self, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the outputs and the next states, each [n, 1, k].

        Args:
            inputs: float32 [n, 1, input_size].
            h, c: float32 [n, 1, k].
        """
        layer, weights = self._layer, self._weights
        state_shape = (len(inputs), 1, layer.hidden_size)
        if inputs.shape[1:] != (1, layer.input_size) or h.shape != state_shape or c.shape != state_shape:
            states = h.transpose(0, 1), c.transpose(0, 1)
            out, (h_out, c_out) = nn.LSTM.forward(layer, inputs, states)  # raises torch's error
            return out, h_out.transpose(0, 1), c_out.transpose(0, 1)
        if not self._packs:
            return torch_step(inputs, h, c, weights)
        mark = (*(each._version for each in weights), *(probe.tobytes() for probe in self._probes))
        if mark != self._mark:
            self._packed, self._mark = pack(weights, layer.hidden_size), mark
        return step(inputs, h, c, [*self._packed, *weights[2:]])

    def forward(self, inputs: Any, hx: Any = None) -> Any:
        """Replace the layer's forward(); longer sequences are passed on to the original."""
        if (
            hx is not None
            and type(inputs) is Tensor
            and inputs.dtype == torch.float32
            and inputs.dim() == 3
            and inputs.shape[1] == 1
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
        ):
            h, c = hx
            if h.dim() == c.dim() == 3:
                out, h_out, c_out = self(inputs, h.transpose(0, 1), c.transpose(0, 1))
                return out, (h_out.transpose(0, 1), c_out.transpose(0, 1))
        return nn.LSTM.forward(self._layer, inputs, hx)


def has_quick_step(part: nn.Module) -> bool:
    """Return True if the module is an LSTM supported by `LSTMStep`."""
    return type(part) is nn.LSTM and is_plain_part(part) and "forward" not in vars(part)


@contextmanager
def quick_layers(steps: Mapping[Any, Any]) -> Iterator[None]:
    """Within the context, replace forward() of layers with that of other objects.

    Args:
        steps: Layer -> object that provides its forward(), such as an `LSTMStep`.
    """
    forwards = {layer: step.forward for layer, step in steps.items()}
    try:
        for layer, forward in forwards.items():
            vars(layer)["forward"] = forward
        yield
    finally:
        for layer, forward in forwards.items():
            if vars(layer).get("forward") == forward:  # unless user code has set another one
                del vars(layer)["forward"]


def _can_pack(layer: nn.LSTM) -> bool:
    weights: list[Any] = layer._flat_weights
    return (
        torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and all(each.is_cpu and each.is_contiguous() and not each.is_inference() for each in weights)
    )


def pack(weights: list[Tensor], size: int) -> list[Tensor]:
    """Reorder the two matrices of an LSTM with hidden states of this size for oneDNN."""
    from_inputs, from_hidden = (each.detach() for each in weights[:2])
    reorder = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight
    return list(reorder(from_inputs, from_hidden, size, False, True, False, [1, 1, from_inputs.shape[1]]))


def step(inputs: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a step as in `LSTMStep.__call__()`; `weights` are two packed matrices and two bias vectors."""
    options: Any = False, [], LSTM_MODE, h.shape[-1], 1, True, False, False, False
    out, h_out, c_out, _ = torch.ops.aten.mkldnn_rnn_layer(
        inputs.transpose(0, 1), *weights, h.squeeze(1), c.squeeze(1), *options
    )
    return out.transpose(0, 1), h_out.unsqueeze(1), c_out.unsqueeze(1)


def torch_step(inputs: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a step as in torch, with weights in the torch layout."""
    states = h.transpose(0, 1), c.transpose(0, 1)
    out, h_out, c_out = torch.lstm(inputs, states, weights, True, 1, 0.0, False, False, True)
    return out, h_out.transpose(0, 1), c_out.transpose(0, 1)


@cache
def is_exact(n_inputs: int, size: int) -> bool:
    """Return whether packed weights yield bit-identical results on this machine, cached per layer size."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    with torch.inference_mode(False), torch.no_grad():
        weights = [random(4 * size, n_inputs), random(4 * size, size), random(4 * size), random(4 * size)]
        packed = [*pack(weights, size), *weights[2:]]
        for n in TRIED_ROWS:
            batch = random(n, 1, n_inputs), random(n, 1, size), random(n, 1, size)
            if not all(map(torch.equal, torch_step(*batch, weights), step(*batch, packed))):
                return False
    return True

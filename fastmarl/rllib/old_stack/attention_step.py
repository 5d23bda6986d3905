"""Computes single steps of the attention layers in RLlib's GTrXL networks without recomputing constants.

In each call, RLlib recomputes the relative position encoding, as well as a mask and a shift that have no effect on a
single step. All other operations are the same as in RLlib, so results are bit-identical.
"""

from typing import Any

import torch
from ray.rllib.models.torch.misc import SlimFC
from ray.rllib.models.torch.modules.relative_multi_head_attention import (
    RelativeMultiHeadAttention,
    RelativePositionEmbedding,
)
from torch import Tensor, nn

from fastmarl.core.nets.dense_layers import is_watched
from fastmarl.rllib.inference.lstm_step import N_PROBED

FORWARD = RelativeMultiHeadAttention.forward  # read before user code can replace it


class AttentionStep:
    """Computes `layer` for sequences of length 1. Must be called without gradients.

    Args:
        layer: Layer whose parameters must not be replaced. In-place changes take effect in the next call if they change
            torch's version counter or one of `N_PROBED` elements of the position matrix.
    """

    def __init__(self, layer: Any):
        self._layer = layer
        self._weights: Tensor = layer._pos_proj._model[0].weight
        flat = self._weights.detach().view(-1)
        self._probe = flat[:: max(1, len(flat) // N_PROBED)].numpy()
        self._positions = torch.empty(0)
        self._mark: tuple = ()

    def forward(self, inputs: Tensor, memory: Any = None) -> Any:
        """Replace the layer's forward(); longer sequences are passed on to the original.

        Args:
            inputs: [n, 1, size].
            memory: [n, length, size].
        """
        layer = self._layer
        if memory is None or inputs.shape[1] != 1 or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return FORWARD(layer, inputs, memory)
        length, heads = memory.shape[1] + 1, (layer._num_heads, layer._head_dim)
        tokens = torch.cat((memory.detach(), inputs), dim=1)
        if layer._input_layernorm is not None:
            tokens = layer._input_layernorm(tokens)
        queries, keys, values = torch.chunk(layer._qkv_layer(tokens), 3, dim=-1)
        queries = queries[:, -1:].reshape(-1, 1, *heads)
        keys, values = keys.reshape(-1, length, *heads), values.reshape(-1, length, *heads)
        scores = torch.einsum("bihd,bjhd->bijh", queries + layer._uvar, keys)
        scores = scores + torch.einsum("bihd,jhd->bijh", queries + layer._vvar, self._encoded(length))
        weights = nn.functional.softmax(scores / heads[1] ** 0.5, dim=2)
        seen = torch.einsum("bijh,bjhd->bihd", weights, values)
        return layer._linear_layer(seen.reshape(*seen.shape[:2], -1))

    def _encoded(self, length: int) -> Tensor:
        """Return the relative position encoding, [length, heads, head size]."""
        mark = length, self._weights._version, self._probe.tobytes()
        if mark != self._mark:
            layer = self._layer
            positions = layer._pos_proj(layer._rel_pos_embedding(length))
            self._positions = positions.reshape(length, layer._num_heads, layer._head_dim)
            self._mark = mark
        return self._positions


def has_attention_step(part: nn.Module) -> bool:
    """Return True if the module is a layer supported by `AttentionStep`."""
    if type(part) is not RelativeMultiHeadAttention or type(part).forward is not FORWARD or "forward" in vars(part):
        return False
    projection: Any = part._pos_proj
    return (
        type(part._rel_pos_embedding) is RelativePositionEmbedding
        and type(projection) is SlimFC
        and [type(layer) for layer in projection._model] == [nn.Linear]
        and not any(is_watched(each) for each in (part, *part.modules()))
        and all(each.is_cpu and each.dtype == torch.float32 and each.is_contiguous() for each in part.parameters())
    )

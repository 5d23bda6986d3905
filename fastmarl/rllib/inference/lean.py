"""Lean inference for RLlib's default modules: compiled code stands in for torch where it gives the same up to rounding.

See fastmarl/core/inference/backends/lean.py, which does this for fastmarl's own default module.
"""

from typing import Any

import numpy as np
import torch
from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead

from fastmarl.core.inference.backends.dense_layers import LEAN, DenseLayers, LeanNet, NotDenseError, weights_of
from fastmarl.rllib.inference.plain_modules import plain_actor
from fastmarl.rllib.store.layout import ObservationLayout

FLOAT32 = np.dtype(np.float32)
FLOATS = (FLOAT32, np.dtype(np.float64))


class LeanActor(LeanNet):
    """Stands in for what a module says of its observations: action_dist_inputs, the same in exploring and inference.

    Args:
        module: one of a MultiRLModule; it is looked at when this is made, for its layers and where their weights are.
            Weights that are changed in place are seen at every call; whether they are still there is for the caller to
            see to (`ExactInference.answer`).
        device: where it is.
    """

    def __init__(self, module: Any, device: torch.device, former: "LeanActor | None" = None):
        super().__init__(former)
        self._n_obs = 0
        self._layout: ObservationLayout | None = None  # the last one that was looked at, ...
        self._fits = False  # ... and whether its observations can be read where they are
        try:
            self._take(self._layers_of(module, device))
        except NotDenseError as reason:
            self._leave(reason)

    def _layers_of(self, module: Any, device: torch.device) -> DenseLayers:
        if device.type != "cpu":
            raise NotDenseError(f"the device is {device}")
        encoder, head = plain_actor(module)
        if type(encoder) is not TorchMLPEncoder:
            raise NotDenseError(f"its encoder is a {type(encoder).__name__}")
        first: Any = encoder.net.mlp[0]
        self._n_obs = first.in_features
        layers = DenseLayers(self._n_obs)
        layers.logits = layers.add([*head.net.mlp], layers.add([*encoder.net.mlp]))
        if type(head) is TorchFreeLogStdMLPHead:
            layers.log_std = weights_of(head, "log_std", (layers.n_out(layers.logits),))
        if head.clip_log_std:
            layers.bound = _bound(head)
        return layers

    def reads(self, layout: ObservationLayout, n: int) -> bool:
        """Whether to give it n rows of these observations as they lie in memory."""
        if layout is not self._layout and self._net is not None:
            leaf = layout.leaves[0]
            self._layout = layout
            self._fits = layout.is_array and leaf.dtype in FLOATS and leaf.shape == (self._n_obs,)
            self.backend = LEAN if self._fits else f"torch: the observations are no float vectors of size {self._n_obs}"
        return self._fits and n <= self.max_rows

    def forward(self, obs: np.ndarray) -> np.ndarray:
        """action_dist_inputs, float32 [n, k], which the next call overwrites.

        Args:
            obs: float32 or float64 [n, size], C-contiguous.
        """
        assert self._net is not None
        return self._net.forward(obs if obs.dtype is FLOAT32 else obs.astype(FLOAT32))[0]


def _bound(head: TorchMLPHead | TorchFreeLogStdMLPHead) -> torch.Tensor:
    """What the logarithms of standard deviations are clipped to."""
    bound = head._buffers["log_std_clip_param_const"]
    if not isinstance(bound, torch.Tensor) or bound.dtype != torch.float32 or bound.shape != (1,) or not bound.is_cpu:
        raise NotDenseError("log_std_clip_param_const is no float32 tensor of one element on the CPU")
    return bound

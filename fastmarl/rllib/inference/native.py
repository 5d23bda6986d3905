"""Native inference for default RLlib modules: compiled code replaces torch where results are equal up to rounding.

fastmarl/core/nets/native.py does this for fastmarl's default module.
"""

from typing import Any

import numpy as np
import torch
from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead

from fastmarl.core.nets.dense_layers import NATIVE, DenseLayers, NativeNet, NotDenseError, weights_of
from fastmarl.rllib.inference.plain_modules import plain_actor
from fastmarl.rllib.store.layout import ObservationLayout

FLOAT32 = np.dtype(np.float32)
FLOATS = (FLOAT32, np.dtype(np.float64))


class NativeActor(NativeNet):
    """Computes action_dist_inputs of a module, which are the same in exploration and inference.

    Args:
        module: A module of a MultiRLModule, whose layers and weights are read once. In-place changes of weights take
            effect in the next call; the caller must detect replaced weights (`ExactInference.answer()`).
        device: Device of the module.
        former: Previous actor of the module, or None.
    """

    def __init__(self, module: Any, device: torch.device, former: "NativeActor | None" = None):
        super().__init__(former)
        self._n_obs = 0
        self._layout: ObservationLayout | None = None  # the last one checked
        self._fits = False  # True if its observations can be read in place
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
        """Return True if `forward()` can read n rows of these observations directly from memory."""
        if layout is not self._layout and self._net is not None:
            leaf = layout.leaves[0]
            self._layout = layout
            self._fits = layout.is_array and leaf.dtype in FLOATS and leaf.shape == (self._n_obs,)
            self.backend = (
                NATIVE if self._fits else f"torch: the observations are not float vectors of size {self._n_obs}"
            )
        return self._fits and n <= self.max_rows

    def forward(self, obs: np.ndarray) -> np.ndarray:
        """Compute action_dist_inputs, float32 [n, k], which the next call overwrites.

        Args:
            obs: float32 or float64 [n, size], C-contiguous.
        """
        assert self._net is not None
        return self._net.forward(obs if obs.dtype is FLOAT32 else obs.astype(FLOAT32), [], [])[0]


def _bound(head: TorchMLPHead | TorchFreeLogStdMLPHead) -> torch.Tensor:
    """Return the clipping bound of log standard deviations."""
    bound = head._buffers["log_std_clip_param_const"]
    if not isinstance(bound, torch.Tensor) or bound.dtype != torch.float32 or bound.shape != (1,) or not bound.is_cpu:
        raise NotDenseError("log_std_clip_param_const is not a float32 tensor of one element on the CPU")
    return bound

"""Lean inference for RLlib's default modules: compiled code stands in for torch where it gives the same up to rounding.

See fastmarl/acting/backends/lean.py, which does this for fastmarl's own default module.
"""

from typing import Any

import numpy as np
import torch
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead

from fastmarl.acting.backends.dense_layers import DenseLayers, NotDenseError, place_of, weights_of
from fastmarl.native._dense import DenseNet
from fastmarl.rllib.acting.layers import NotPlainError, plain_actor
from fastmarl.rllib.recording.layout import ObservationLayout

LEAN = "lean"
FLOAT32 = np.dtype(np.float32)
FLOATS = (FLOAT32, np.dtype(np.float64))


class LeanActor:
    """Stands in for what a module says of its observations: action_dist_inputs, the same in exploring and inference.

    Args:
        module: one of a MultiRLModule; it is looked at when this is made, for its layers and where their weights are.
            Weights that are changed in place are seen at every call; whether they are still there is for the caller to
            see to (`ExactInference.answer`).
        device: where it is.
        former: the one for the same module before, whose memory is used again if nothing but weights has changed.

    Attributes:
        backend: "lean", or "torch" and the reason why.
    """

    def __init__(self, module: Any, device: torch.device, former: "LeanActor | None" = None):
        self._net: DenseNet | None = None
        self._key: tuple | None = None
        self._max_rows = self._n_obs = 0
        self._layout: ObservationLayout | None = None  # the last one that was looked at, ...
        self._fits = False  # ... and whether its observations can be read where they are
        self.backend = LEAN
        try:
            self._read(module, device, former)
        except (NotPlainError, NotDenseError) as reason:
            self.backend = f"torch: {reason}"

    def _read(self, module: Any, device: torch.device, former: "LeanActor | None") -> None:
        if device.type != "cpu":
            raise NotPlainError(f"the device is {device}")
        encoder, head = plain_actor(module)
        first: Any = encoder[0]
        self._n_obs = first.in_features
        layers = DenseLayers(self._n_obs)
        logits = layers.add([*head.net.mlp], layers.add([*encoder]))
        log_std, bound = _log_std(head, layers.n_out(logits)), _bound(head)
        self._key = *layers.key(), place_of(log_std), place_of(bound)
        if former is not None and former._key == self._key:
            self._net = former._net
        else:
            self._net = layers.compiled(logits, -1, log_std, bound)
        self._max_rows = layers.max_rows()

    def reads(self, layout: ObservationLayout, n: int) -> bool:
        """Whether to give it n rows of these observations as they lie in memory."""
        if layout is not self._layout:
            self._look_at(layout)
        return self._fits and n <= self._max_rows

    def _look_at(self, layout: ObservationLayout) -> None:
        self._layout, self._fits = layout, False
        if self._net is None:
            return
        leaf = layout.leaves[0]
        self._fits = layout.is_array and leaf.dtype in FLOATS and leaf.shape == (self._n_obs,)
        self.backend = LEAN if self._fits else f"torch: the observations are no float vectors of size {self._n_obs}"

    @property
    def is_compiled(self) -> bool:
        """Whether it can run the module as it was when it was last looked at."""
        return self._net is not None

    def forward(self, obs: np.ndarray) -> np.ndarray:
        """action_dist_inputs, float32 [n, k], which the next call overwrites.

        Args:
            obs: float32 or float64 [n, size], C-contiguous.
        """
        assert self._net is not None
        return self._net.forward(obs if obs.dtype is FLOAT32 else obs.astype(FLOAT32))[0]


def _log_std(head: Any, n_means: int) -> torch.Tensor | None:
    """A free logarithm of standard deviations, which does not depend on observations."""
    return weights_of(head, "log_std", (n_means,)) if type(head) is TorchFreeLogStdMLPHead else None


def _bound(head: TorchMLPHead | TorchFreeLogStdMLPHead) -> torch.Tensor | None:
    """What the logarithms of standard deviations are clipped to."""
    if not head.clip_log_std:
        return None
    bound = head._buffers["log_std_clip_param_const"]
    if not isinstance(bound, torch.Tensor) or bound.dtype != torch.float32 or bound.shape != (1,) or not bound.is_cpu:
        raise NotDenseError("log_std_clip_param_const is no float32 tensor of one element on the CPU")
    return bound

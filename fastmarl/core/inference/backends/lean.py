"""Lean inference: which modules are plain dense nets, so that compiled code can stand in for torch.

In small batches torch's calls take longer than its arithmetic. A module is taken over only where it is certain what its
forward methods compute: it is a `DefaultRLModule`, or of a subclass that keeps these methods, made of
linear layers, layer normalisations and known activations without hooks. All others run in torch.
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from fastmarl.core.inference.backends.dense_layers import (
    DenseLayers,
    LeanNet,
    NotDenseError,
    is_watched,
    parts_of,
    weights_of,
)
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.default import DefaultRLModule, FreeLogStd
from fastmarl.core.modules.encoders import Flat
from fastmarl.core.modules.layers import Chain
from fastmarl.core.native._weights import WeightsWatch
from fastmarl.core.spaces.layout import Leaf, RowLayout

METHODS = {
    name: getattr(DefaultRLModule, name)  # as it is before anybody can have replaced it
    for name in (
        "forward_exploration",
        "forward_inference",
        "_forward_exploration",
        "_forward_inference",
        "_forward",
        "__getattribute__",
        "__getattr__",
    )
}
DTYPES = (np.float32, np.uint8, np.int8)  # of observations


class LeanModule(LeanNet):
    """Stands in for one module's forward methods, as long as that is certain to give the same.

    Args:
        module: it is watched, and not changed.
        layout: of the observations it gets.
        device: on which they are.
        allowed: False: always leave it to torch.
        dtype: that is wanted; there is only "float32".
    """

    def __init__(
        self, module: RLModule, layout: RowLayout, device: torch.device, *, allowed: bool, dtype: str = "float32"
    ):
        super().__init__()
        self._module = module
        self._obs = layout.leaves[0]
        self._cannot = _why_never(module, layout, device, allowed, dtype)
        self._watch: WeightsWatch | None = None
        self.renew()

    def renew(self) -> None:
        """Look at the module again: its layers, where its weights are, what hooks into it.

        To be called before the module acts, if it may have changed since: methods and hooks are seen only
        here, layers and where weights lie at every call of `forward()`, too.
        """
        try:
            if self._cannot:
                raise NotDenseError(self._cannot)
            layers = _layers_of(self._module, self._obs)
        except NotDenseError as reason:
            self._watch = None
            self._leave(reason)
            return
        self._watch = WeightsWatch(_parts_of(self._module))  # before addresses are read: others may move weights
        self._take(layers)

    def forward(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray | None] | None:
        """(logits float32 [n, k], values float32 [n] or None), which the next call overwrites; or None: as the module
        is now, it can't be run like this.

        Args:
            obs: [n, ...] of the layout's dtype, C-contiguous, n <= max_rows.
        """
        if self._watch is None or not self._watch.holds():
            self.renew()
        return None if self._net is None else self._net.forward(obs)


def _why_never(module: RLModule, layout: RowLayout, device: torch.device, allowed: bool, dtype: str) -> str:
    """What no change to the module's layers could mend; "" if nothing is in the way."""
    if not allowed:
        return "lean_inference is False"
    if device.type != "cpu":
        return f"the device is {device}"
    if dtype != "float32":
        return f"inference_dtype is {dtype}"
    if not isinstance(module, DefaultRLModule):
        return f"{type(module).__name__} is no DefaultRLModule"
    if module.is_stateful():
        return "it has memory"
    if not isinstance(layout.space, gym.spaces.Box) or layout.leaves[0].dtype not in DTYPES:
        return "the observations are no Box of floats or bytes"
    return ""


def _layers_of(module: Any, obs: Leaf) -> DenseLayers:
    """A module's layers as they are now, for such observations.

    Raises:
        NotDenseError: something in it isn't known.
    """
    kind, own = type(module), vars(module)
    for name, method in METHODS.items():
        if name in own or getattr(kind, name) is not method:
            raise NotDenseError(f"{kind.__name__} has a {name}() of its own")
    if module.masks_actions:
        raise NotDenseError("it masks actions itself")
    layers = DenseLayers(math.prod(obs.shape))
    is_flat = obs.dtype == np.float32 and len(obs.shape) == 1
    features = layers.add(_flattened(module.trunk, layers, is_flat))
    policy = _flat(module.pi)
    log_std = policy.pop() if policy and type(policy[-1]) is FreeLogStd else None
    layers.logits = layers.add(policy, features)
    if log_std is not None:
        layers.log_std = weights_of(log_std, "log_std", (layers.n_out(layers.logits),))
    if module.vf is not None:
        if module.vf_trunk is not None:
            features = layers.add(_flattened(module.vf_trunk, layers, is_flat))
        layers.values = layers.add(_flat(module.vf), features)
    if layers.logits < 0 or (module.vf is not None and (layers.values < 0 or layers.n_out(layers.values) != 1)):
        raise NotDenseError("its heads are not linear layers, with one output for the value")
    return layers


def _parts_of(module: Any) -> list[nn.Module]:
    """All that has been read."""
    children = module.trunk, module.pi, module.vf_trunk, module.vf
    return [module, *parts_of(*(child for child in children if child is not None))]


def _flattened(trunk: Any, read: DenseLayers, is_flat: bool) -> list[nn.Module]:
    """The layers behind what makes float vectors of observations, which are often such vectors already."""
    layers = _flat(trunk)
    if layers and type(layers[0]) is Flat:
        read.scale = layers[0]._scale
        return layers[1:]
    if not is_flat:
        raise NotDenseError("its first layer does not flatten observations as the default nets do")
    return layers


def _flat(part: Any) -> list[nn.Module]:
    """The layers of (nested) sequences, in order."""
    if is_watched(part):
        raise NotDenseError(f"{type(part).__name__} has hooks, or is compiled")
    if type(part) not in (Chain, nn.Sequential):
        return [part]
    return [layer for child in part._modules.values() for layer in _flat(child)]

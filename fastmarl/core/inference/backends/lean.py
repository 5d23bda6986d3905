"""Lean inference: compiled code in place of torch for plain dense networks.

In small batches torch's calls take longer than its arithmetic. A module is taken over only if the results of its
forward methods are certain: it is a `DefaultRLModule`, or of a subclass that keeps these methods, made of linear
layers, layer normalisations and known activations without hooks. All others run in torch.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from fastmarl.core.inference.backends.dense_layers import (
    DenseLayers,
    LeanNet,
    NotDenseError,
    layers_in_order,
    parts_of,
    weights_of,
)
from fastmarl.core.inference.backends.lean_inputs import Inputs, Rows, mask_leaves, take_inputs
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.default import DefaultRLModule, FreeLogStd
from fastmarl.core.native._masks import rule_out
from fastmarl.core.native._weights import WeightsWatch
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.structs import Path

METHODS = {
    name: getattr(DefaultRLModule, name)  # as it is before any code can replace it
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


class LeanModule(LeanNet):
    """Replaces one module's forward methods as long as results are certain to be equal.

    Args:
        module: The module; it is not changed.
        layout: Layout of its observations.
        device: Device of the observations.
        allowed: False: always use torch.
        dtype: Requested dtype; only "float32" can be lean.
    """

    def __init__(
        self, module: RLModule, layout: RowLayout, device: torch.device, *, allowed: bool, dtype: str = "float32"
    ):
        super().__init__()
        self._module = module
        self._layout = layout
        self._cannot = _why_never(module, layout, device, allowed, dtype)
        self._watch: WeightsWatch | None = None
        self._rows: Rows | None = None
        self._masks: list[tuple[int, int]] = []  # leaves, and their numbers of values in a row
        self.renew()

    def renew(self) -> None:
        """Check the module again: its layers, the memory of its weights, and its hooks.

        Call this before the module acts if it may have changed: methods and hooks are checked only here, layers and
        memory at every call of `forward()`, too.
        """
        try:
            if self._cannot:
                raise NotDenseError(self._cannot)
            layers, inputs, self._masks = _layers_of(self._module, self._layout)
        except NotDenseError as reason:
            self._watch = None
            self._leave(reason)
            return
        if self._rows is None or self._rows.inputs != inputs:
            self._rows = Rows(inputs)
        self._watch = WeightsWatch(_parts_of(self._module))  # before addresses are read: others may move weights
        self._take(layers)

    def forward(self, leaves: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Compute logits and values, which the next call overwrites.

        Args:
            leaves: Leaves of observations, [n, ...] of the layout's dtypes, C-contiguous, n <= max_rows.

        Returns:
            (logits float32 [n, k], values float32 [n] or None), or None if the module has changed so that torch
            must run it.
        """
        if self._watch is None or not self._watch.holds():
            self.renew()
        if self._net is None or self._rows is None:
            return None
        logits, values = self._net.forward(self._rows.of(leaves))
        first = 0
        for index, size in self._masks:
            rule_out(logits, leaves[index], first)
            first += size
        return logits, values


def _why_never(module: RLModule, layout: RowLayout, device: torch.device, allowed: bool, dtype: str) -> str:
    """Return the reason that rules a module out whatever its layers are; "" if there is none."""
    if not allowed:
        return "lean_inference is False"
    if device.type != "cpu":
        return f"the device is {device}"
    if dtype != "float32":
        return f"inference_dtype is {dtype}"
    if not isinstance(module, DefaultRLModule):
        return f"{type(module._net()).__name__} is not a DefaultRLModule"
    if module.is_stateful():
        return "it has memory"
    if any(leaf.dtype == object for leaf in layout.leaves):
        return "the observations have parts that are not arrays"
    return ""


def _layers_of(module: Any, layout: RowLayout) -> tuple[DenseLayers, Inputs, list[tuple[int, int]]]:
    """Return a module's current layers, its inputs of such observations, and the masks of its logits.

    Raises:
        NotDenseError: If a layer or method is not known.
    """
    kind, own = type(module), vars(module)
    for name, method in METHODS.items():
        if name in own or getattr(kind, name) is not method:
            raise NotDenseError(f"{kind.__name__} has a {name}() of its own")
    path: Path = () if module._observation_key is None else (module._observation_key,)
    inputs, trunk = take_inputs(layers_in_order(module.trunk), layout, path)
    layers = DenseLayers(sum(inputs.sizes))
    layers.scale = inputs.scale
    features = layers.add(trunk)
    policy = layers_in_order(module.pi)
    log_std = policy.pop() if policy and type(policy[-1]) is FreeLogStd else None
    layers.logits = layers.add(policy, features)
    if log_std is not None:
        layers.log_std = weights_of(log_std, "log_std", (layers.n_out(layers.logits),))
    if module.vf is not None:
        if module.vf_trunk is not None:
            vf_inputs, vf_trunk = take_inputs(layers_in_order(module.vf_trunk), layout, path)
            if vf_inputs != inputs:
                raise NotDenseError("its value function reads the observations in another way")
            features = layers.add(vf_trunk)
        layers.values = layers.add(layers_in_order(module.vf), features)
    if layers.logits < 0 or (module.vf is not None and (layers.values < 0 or layers.n_out(layers.values) != 1)):
        raise NotDenseError("its heads are not linear layers, with one output for the value")
    n_logits = layers.n_out(layers.logits) * (1 if log_std is None else 2)
    return layers, inputs, mask_leaves(layout, module._mask_key, n_logits)


def _parts_of(module: Any) -> list[nn.Module]:
    """Return all parts that `_layers_of()` reads."""
    children = module.trunk, module.pi, module.vf_trunk, module.vf
    return [module, *parts_of(*(child for child in children if child is not None))]

"""Lean inference: which modules are plain dense nets, so that compiled code can stand in for torch.

In small batches torch's calls take longer than its sums. A module is taken over only where it is certain what its
forward methods compute: it is a `DefaultRLModule`, or one of a subclass that leaves these methods as they are, made of
linear layers and known activations that nobody hooks into. All others run as ever.
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from fastmarl._dense import BEST, DenseNet
from fastmarl.modules import DefaultRLModule, RLModule
from fastmarl.modules.default import FreeLogStd
from fastmarl.modules.encoders import Flat
from fastmarl.modules.layers import Chain
from fastmarl.spaces import RowLayout

LEAN = "lean"
ACTIVATIONS = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.SiLU: "silu", nn.GELU: "gelu", nn.ELU: "elu"}
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
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
DTYPES = (np.float32, np.uint8, np.int8)  # of observations
OBSERVATIONS = -1  # in place of a layer's index
# Multiplications in one pass, above which torch is quicker: where it has more threads, or we no wide vectors.
MOST_AGAINST_THREADS = 4_000_000
MOST_PLAIN = 300_000

Layer = tuple[int, torch.Tensor, torch.Tensor | None, str, float]  # source, weight, bias, activation, alpha


class LeanModule:
    """Stands in for one module's forward methods, as long as that is certain to give the same.

    Args:
        module: it is watched, and not changed.
        layout: of the observations it gets.
        device: on which they are.
        allowed: False: always leave it to torch.

    Attributes:
        backend: "lean", or "torch" and the reason why.
        max_rows: the largest batch to take over; 0: none.
    """

    def __init__(self, module: RLModule, layout: RowLayout, device: torch.device, *, allowed: bool):
        self._module = module
        self._n_obs, self._is_flat = 0, True
        self._cannot = _why_never(module, layout, device, allowed)
        if not self._cannot:
            self._n_obs, self._is_flat = math.prod(layout.leaves[0].shape), _is_flat(layout)
        self._net: DenseNet | None = None
        self._key: tuple | None = None
        self.renew()

    def renew(self) -> None:
        """Look at the module again: its layers, where its weights are, what hooks into it.

        To be called before the module acts, where somebody may have changed it since. Weights that are changed in place
        are seen without.
        """
        try:
            if self._cannot:
                raise _NotDense(self._cannot)
            net = _Reader(self._module, self._n_obs, is_flat=self._is_flat)
        except _NotDense as reason:
            self._net = self._key = None
            self.max_rows, self.backend = 0, f"torch: {reason}"
            return
        if net.key() != self._key:
            self._net, self._key = net.compiled(), net.key()
        self.max_rows, self.backend = _max_rows(net.multiplications()), LEAN

    def forward(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """(logits float32 [n, k], values float32 [n] or None), which the next call overwrites.

        Args:
            obs: [n, ...] of the layout's dtype, C-contiguous, n <= max_rows.
        """
        assert self._net is not None
        return self._net.forward(obs)


class _NotDense(Exception):
    """Why a module is left to torch."""


def _why_never(module: RLModule, layout: RowLayout, device: torch.device, allowed: bool) -> str:
    """What no change to the module's layers could mend; "" if nothing is in the way."""
    if not allowed:
        return "lean_inference is False"
    if device.type != "cpu":
        return f"the device is {device}"
    if not isinstance(module, DefaultRLModule):
        return f"{type(module).__name__} is no DefaultRLModule"
    if module.is_stateful():
        return "it has memory"
    if not isinstance(layout.space, gym.spaces.Box) or layout.leaves[0].dtype not in DTYPES:
        return "the observations are no Box of floats or bytes"
    return ""


def _is_flat(layout: RowLayout) -> bool:
    """Whether observations are float vectors as they are."""
    return layout.leaves[0].dtype == np.float32 and len(layout.leaves[0].shape) == 1


def _max_rows(multiplications: int) -> int:
    """Rows up to which we are quicker than torch, for a net of so many multiplications a row."""
    most = math.inf
    if torch.get_num_threads() > 1:
        most = MOST_AGAINST_THREADS
    if BEST == "plain":
        most = MOST_PLAIN
    return 2**62 if most == math.inf else int(most // max(1, multiplications))


class _Reader:
    """The layers of a module as they are now.

    Raises:
        _NotDense: something in it isn't known.
    """

    def __init__(self, module: Any, n_obs: int, *, is_flat: bool):
        kind, own = type(module), vars(module)
        for name, method in METHODS.items():
            if name in own or getattr(kind, name) is not method:
                raise _NotDense(f"{kind.__name__} has a {name}() of its own")
        if module._observation_key is not None:
            raise _NotDense("it masks actions itself")
        self._n_obs, self._is_flat = n_obs, is_flat
        self._scale = 1.0
        self._layers: list[Layer] = []
        self._values = OBSERVATIONS
        features = self._add(self._flattened(module.trunk), OBSERVATIONS)
        policy = _flat(module.pi)
        log_std = policy.pop() if policy and type(policy[-1]) is FreeLogStd else None
        self._logits = self._add(policy, features)
        self._log_std = None if log_std is None else _weights(log_std, "log_std", (self._n_out(self._logits),))
        if module.vf is not None:
            if module.vf_trunk is not None:
                features = self._add(self._flattened(module.vf_trunk), OBSERVATIONS)
            self._values = self._add(_flat(module.vf), features)
        if self._logits < 0 or (module.vf is not None and (self._values < 0 or self._n_out(self._values) != 1)):
            raise _NotDense("its heads are not linear layers, with one output for the value")

    def key(self) -> tuple:
        """Equal where nothing has changed but numbers in weights."""
        layers = [
            (source, _place(weight), _place(bias), activation, alpha)
            for source, weight, bias, activation, alpha in self._layers
        ]
        return *layers, self._logits, self._values, _place(self._log_std), self._scale

    def compiled(self) -> DenseNet:
        layers = [
            (source, weight.detach().numpy(), None if bias is None else bias.detach().numpy(), activation, alpha)
            for source, weight, bias, activation, alpha in self._layers
        ]
        log_std = None if self._log_std is None else self._log_std.detach().numpy()
        return DenseNet(self._n_obs, layers, self._logits, self._values, log_std, scale=self._scale)

    def multiplications(self) -> int:
        """For one row."""
        return sum(weight.numel() for _, weight, *_ in self._layers)

    def _flattened(self, trunk: Any) -> list[nn.Module]:
        """The layers behind what makes float vectors of observations, which are often such vectors already."""
        layers = _flat(trunk)
        if layers and type(layers[0]) is Flat:
            self._scale = layers[0]._scale
            return layers[1:]
        if not self._is_flat:
            raise _NotDense("its first layer does not flatten observations as the default nets do")
        return layers

    def _n_out(self, layer: int) -> int:
        return self._n_obs if layer < 0 else self._layers[layer][1].shape[0]

    def _add(self, parts: list[nn.Module], source: int) -> int:
        """Take layers that follow layer `source`; returns the index of the last one."""
        follows_linear = False  # other activations would change what other layers get, too
        for part in parts:
            kind = type(part)
            if getattr(part, "approximate", "none") != "none":
                raise _NotDense(f"{part} is not known to it")
            if type(part) is nn.Linear:
                weight = _weights(part, "weight", (part.out_features, self._n_out(source)))
                bias = None if part._parameters["bias"] is None else _weights(part, "bias", (part.out_features,))
                self._layers.append((source, weight, bias, "linear", 1.0))
                source = len(self._layers) - 1
            elif kind in ACTIVATIONS and follows_linear:
                self._layers[source] = (*self._layers[source][:3], ACTIVATIONS[kind], getattr(part, "alpha", 1.0))
            else:
                raise _NotDense(f"{kind.__name__} is not known to it" if kind not in ACTIVATIONS else
                                f"{kind.__name__} does not follow a linear layer")  # fmt: skip
            follows_linear = kind is nn.Linear
        return source


def _flat(part: Any) -> list[nn.Module]:
    """The layers of (nested) sequences, in order."""
    own = vars(part)
    if "forward" in own or part._compiled_call_impl or any(map(own.__getitem__, HOOKS)):
        raise _NotDense(f"{type(part).__name__} has hooks, or is compiled")
    if type(part) not in (Chain, nn.Sequential):
        return [part]
    return [layer for child in part._modules.values() for layer in _flat(child)]


def _weights(layer: nn.Module, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    weights = layer._parameters[name]
    if type(weights) is not nn.Parameter or weights.dtype is not torch.float32 or not weights.is_cpu:
        raise _NotDense(f"{type(layer).__name__}.{name} is no torch.nn.Parameter of float32 on the CPU")
    if weights.shape != shape or not weights.is_contiguous():
        raise _NotDense(f"{type(layer).__name__}.{name} is not contiguous, or has shape {list(weights.shape)}")
    return weights


def _place(weights: torch.Tensor | None) -> tuple | None:
    return None if weights is None else (weights.data_ptr(), weights.shape)

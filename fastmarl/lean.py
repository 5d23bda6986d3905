"""Lean inference: which modules are plain dense nets, so that compiled code can stand in for torch.

In small batches torch's calls take longer than its sums. A module is taken over only where it is certain what its
forward methods compute: it is a `DefaultRLModule`, or one of a subclass that leaves these methods as they are, made of
linear layers, layer normalisations and known activations that nobody hooks into. All others run as ever.
"""

import math
from typing import Any, NamedTuple

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


class Layer(NamedTuple):
    """One layer, as DenseNet has it."""

    source: int
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    activation: str = "linear"
    alpha: float = 1.0  # of ELU
    eps: float | None = None  # of a layer normalisation


class LeanModule:
    """Stands in for one module's forward methods, as long as that is certain to give the same.

    Args:
        module: it is watched, and not changed.
        layout: of the observations it gets.
        device: on which they are.
        allowed: False: always leave it to torch.
        dtype: that is wanted; there is only "float32".

    Attributes:
        backend: "lean", or "torch" and the reason why.
        max_rows: the largest batch to take over; 0: none.
    """

    def __init__(
        self, module: RLModule, layout: RowLayout, device: torch.device, *, allowed: bool, dtype: str = "float32"
    ):
        self._module = module
        self._n_obs, self._is_flat = 0, True
        self._cannot = _why_never(module, layout, device, allowed, dtype)
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
        self._widths: list[int] = []  # outputs of each
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
        layers = [(layer.source, _place(layer.weight), _place(layer.bias), *layer[3:]) for layer in self._layers]
        return *layers, self._logits, self._values, _place(self._log_std), self._scale

    def compiled(self) -> DenseNet:
        layers = [(layer.source, _array(layer.weight), _array(layer.bias), *layer[3:]) for layer in self._layers]
        return DenseNet(self._n_obs, layers, self._logits, self._values, _array(self._log_std), scale=self._scale)

    def multiplications(self) -> int:
        """For one row."""
        return sum(0 if weight is None else weight.numel() for _, weight, *_ in self._layers)

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
        return self._n_obs if layer < 0 else self._widths[layer]

    def _add(self, parts: list[nn.Module], source: int) -> int:
        """Take layers that follow layer `source`; returns the index of the last one."""
        follows_layer = False  # other activations would change what other layers get, too
        for part in parts:
            kind, width = type(part), self._n_out(source)
            if getattr(part, "approximate", "none") != "none":
                raise _NotDense(f"{part} is not known to it")
            if kind is nn.Linear or (kind is nn.LayerNorm and part.normalized_shape == (width,)):
                self._append(part, source, width)
            elif kind in ACTIVATIONS and follows_layer:
                activation, alpha = ACTIVATIONS[kind], getattr(part, "alpha", 1.0)
                self._layers[-1] = self._layers[-1]._replace(activation=activation, alpha=alpha)
            else:
                raise _NotDense(f"{kind.__name__} is not known to it" if kind not in ACTIVATIONS else
                                f"{kind.__name__} does not follow a linear layer")  # fmt: skip
            follows_layer = kind not in ACTIVATIONS
            source = len(self._layers) - 1
        return source

    def _append(self, part: Any, source: int, width: int) -> None:
        """Take a layer of so many inputs."""
        is_norm = type(part) is nn.LayerNorm
        n_out = width if is_norm else part.out_features
        weight = _weights(part, "weight", (n_out,) if is_norm else (n_out, width))
        eps = part.eps if is_norm else None
        self._layers.append(Layer(source, weight, _weights(part, "bias", (n_out,)), eps=eps))
        self._widths.append(n_out)


def _flat(part: Any) -> list[nn.Module]:
    """The layers of (nested) sequences, in order."""
    own = vars(part)
    if "forward" in own or part._compiled_call_impl or any(map(own.__getitem__, HOOKS)):
        raise _NotDense(f"{type(part).__name__} has hooks, or is compiled")
    if type(part) not in (Chain, nn.Sequential):
        return [part]
    return [layer for child in part._modules.values() for layer in _flat(child)]


def _weights(layer: nn.Module, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    weights = layer._parameters[name]
    if weights is None:  # as layers without a bias have it
        return None
    if type(weights) is not nn.Parameter or weights.dtype is not torch.float32 or not weights.is_cpu:
        raise _NotDense(f"{type(layer).__name__}.{name} is no torch.nn.Parameter of float32 on the CPU")
    if weights.shape != shape or not weights.is_contiguous():
        raise _NotDense(f"{type(layer).__name__}.{name} is not contiguous, or has shape {list(weights.shape)}")
    return weights


def _array(weights: torch.Tensor | None) -> np.ndarray | None:
    return None if weights is None else weights.detach().numpy()


def _place(weights: torch.Tensor | None) -> tuple | None:
    return None if weights is None else (weights.data_ptr(), weights.shape)

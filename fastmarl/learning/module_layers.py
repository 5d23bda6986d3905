"""Reads the training forward pass of a module as a dense network, if it consists only of layers."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode

from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.default import DefaultRLModule, FreeLogStd
from fastmarl.core.modules.distributions.continuous import DiagGaussian
from fastmarl.core.modules.distributions.discrete import Categorical, MultiCategorical
from fastmarl.core.modules.encoders import Entries, Flat, OneHot
from fastmarl.core.nets.dense_layers import (
    CELLS,
    OBSERVATIONS,
    DenseLayers,
    NotDenseError,
    is_watched,
    layers_in_order,
    parts_of,
    weights_of,
)
from fastmarl.core.nets.native import steps_and_cell
from fastmarl.learning.dense_nets import DenseNet
from fastmarl.learning.traced_layers import read_layers

GLOBAL_HOOKS = (
    "_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks", "_global_backward_hooks"
)  # fmt: skip
METHODS = ("_forward", "_forward_train", "_remember", "get_train_action_dist_cls", "get_exploration_action_dist_cls")
ENCODERS = (Flat, OneHot, Entries)  # without parameters


class ModuleLayers(NamedTuple):
    """A module as a dense network.

    Attributes:
        net: The network.
        observe: Converts "obs" of a batch to float32 [n, n_obs].
        mask_key: Key of the action mask in observations that the module applies; None if it applies no mask.
    """

    net: DenseNet
    observe: Callable[[Any], Tensor]
    mask_key: str | None

    def of_other(self, parameters: Mapping[Any, Any]) -> "ModuleLayers":
        """Return the layers of a module with the same structure, whose parameters are the values of `parameters`."""

        def other(weights: Tensor | None) -> Any:
            return None if weights is None else parameters[weights]

        layers = [
            each._replace(
                weight=other(each.weight),
                bias=other(each.bias),
                cell=each.cell and each.cell._replace(weight=other(each.cell.weight), bias=other(each.cell.bias)),
            )
            for each in self.net.layers
        ]
        return self._replace(net=self.net._replace(layers=layers, log_std=other(self.net.log_std)))


def layers_of_module(module: RLModule, inputs: Mapping[str, Any] | None = None) -> ModuleLayers:
    """Read the layers of a module in their current state.

    Args:
        module: The module, which runs a forward pass unless it is a default network; see `is_default()`.
        inputs: See `read_layers()`; None for a default network.

    Raises:
        NotDenseError: If the module might compute anything other than these layers.
    """
    if module.action_space is None:
        raise NotDenseError("its action space is unknown")
    if own := [name for name in (*METHODS, "forward_train") if name in vars(module)]:
        raise NotDenseError(f"it has its own {own[0]}()")
    if type(module).forward_train is not RLModule.forward_train:
        raise NotDenseError(f"{type(module).__name__} overrides forward_train()")
    found = _default_layers(module) if is_default(module) else _traced_layers(module, inputs or {})
    if found.net.logits == found.net.values:
        raise NotDenseError("its values are its logits")
    return found._replace(net=found.net._replace(sizes=_sizes(module, found.net)))


def is_default(module: RLModule) -> bool:
    """Return True if unmodified code of a default network computes the outputs."""
    kind = type(module)
    return isinstance(module, DefaultRLModule) and all(
        getattr(kind, name) is getattr(DefaultRLModule, name) for name in METHODS
    )


def check_unwatched(module: RLModule) -> None:
    """Raise NotDenseError if a forward pass may run code other than its layers: hooks, modes or compiled code."""
    if torch.is_autocast_enabled("cpu"):
        raise NotDenseError("torch.autocast is on")
    modes = [each for each in _get_current_function_mode_stack() if not isinstance(each, DeviceContext)]
    has_hooks = any(getattr(torch_modules, hooks) for hooks in GLOBAL_HOOKS)
    if modes or has_hooks or _get_current_dispatch_mode() is not None:
        raise NotDenseError("there are hooks on all modules, or a mode that intercepts all torch operations")
    for part in parts_of(module):
        if is_watched(part):
            raise NotDenseError(f"a {type(part).__name__} in it has hooks or is compiled")
        for parameter in part._parameters.values():
            if parameter is not None and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
                raise NotDenseError("a parameter in it has hooks")


def _sizes(module: RLModule, net: DenseNet) -> list[int] | None:
    """Return the number of options of each choice, or None for a Gaussian policy."""
    kind = module.get_train_action_dist_cls()
    origin = vars(kind)["bound"][0] if "bound" in vars(kind) else kind
    n_logits = len(net.layers[net.logits].weight)  # type: ignore[arg-type]
    if not n_logits:
        raise NotDenseError("it has no logits")
    if origin is DiagGaussian:
        return None
    if origin is MultiCategorical and net.log_std is None:
        return [*kind.nvec]  # type: ignore[attr-defined]
    if origin is Categorical and net.log_std is None:
        return [n_logits]
    raise NotDenseError(f"a {kind.__name__} policy has no compiled gradient")


# Default networks.


def _default_layers(module: Any) -> ModuleLayers:
    steps, cell = steps_and_cell(module.trunk)
    encoder, trunk = _split(steps)
    n_obs = _n_inputs([*trunk, *([] if cell is None else [cell]), *layers_in_order(module.pi)])
    layers = DenseLayers(n_obs)
    policy = layers_in_order(module.pi)
    log_std = policy.pop() if type(policy[-1]) is FreeLogStd else None
    features = layers.add_trunk(trunk, cell, () if module.vf_trunk is None else ("actor",))
    logits = layers.add(policy, features)
    values = OBSERVATIONS
    if module.vf is not None:
        if module.vf_trunk is not None:
            vf_steps, vf_cell = steps_and_cell(module.vf_trunk)
            vf_encoder, vf_trunk = _split(vf_steps)
            if (encoder is None) != (vf_encoder is None):
                raise NotDenseError("its policy and value networks encode observations differently")
            features = layers.add_trunk(vf_trunk, vf_cell, ("critic",))
        values = layers.add(layers_in_order(module.vf), features)
    row = None if log_std is None else weights_of(log_std, "log_std", (layers.n_out(logits),))
    net = DenseNet(n_obs, layers.layers, logits, values, None, row)

    def observe(obs: Any) -> Tensor:
        seen = obs if module._observation_key is None else obs[module._observation_key]
        return seen if encoder is None else encoder(seen)

    return ModuleLayers(net, observe, module._mask_key)


def _n_inputs(layers: list[Any]) -> int:
    """Return the input size of the first layer that has a fixed input size."""
    for part in layers:
        if type(part) is nn.Linear:
            return part.in_features
        if type(part) in CELLS:
            return part.input_size
    raise NotDenseError("it has no linear layer")


def _split(layers: list[nn.Module]) -> tuple[nn.Module | None, list[nn.Module]]:
    """Split off the leading encoder, if there is one."""
    if not layers or type(layers[0]) not in ENCODERS:
        return None, layers
    if next(layers[0].parameters(), None) is not None:
        raise NotDenseError("its encoder has parameters")
    return layers[0], layers[1:]


# Modules of other classes.


def _traced_layers(module: RLModule, inputs: Mapping[str, Any]) -> ModuleLayers:
    if module.masks_actions:
        raise NotDenseError("it masks actions itself")
    net, path = read_layers(module, inputs)

    def observe(obs: Any) -> Tensor:
        for key in path:
            obs = obs[key]
        return obs

    return ModuleLayers(net, observe, None)

"""Reads a module's training forward pass as a dense network: default networks, and others that consist only of layers.

Modules of other classes are traced by `torch.fx` with placeholders for numbers. If the trace contains an unknown
operation, or tracing has side effects on the module, autograd computes the module's gradient instead.
"""

import operator
import random
from collections import deque
from collections.abc import Callable, ValuesView
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn

from fastmarl.core.columns import Columns
from fastmarl.core.inference.backends.dense_layers import (
    ACTIVATIONS,
    OBSERVATIONS,
    DenseLayers,
    NotDenseError,
    is_watched,
    layers_in_order,
    parts_of,
    weights_of,
)
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.default import DefaultRLModule, FreeLogStd
from fastmarl.core.modules.distributions.continuous import DiagGaussian
from fastmarl.core.modules.distributions.discrete import Categorical, MultiCategorical
from fastmarl.core.modules.encoders import Entries, Flat, OneHot
from fastmarl.learning.dense_nets import DenseNet

METHODS = ("_forward", "_forward_train", "get_train_action_dist_cls", "get_exploration_action_dist_cls")
ENCODERS = (Flat, OneHot, Entries)  # without parameters
CONTAINERS = (list, set, deque, ValuesView)


class ModuleLayers(NamedTuple):
    """A module as a dense network.

    Attributes:
        net: The network.
        observe: Converts a batch's "obs" to float32 [n, n_obs].
        mask_key: Key of the observation's entry with the mask that the module applies itself; None: it applies none.
    """

    net: DenseNet
    observe: Callable[[Any], Tensor]
    mask_key: str | None


def layers_of_module(module: RLModule) -> ModuleLayers:
    """Read a module's layers in their current state.

    Raises:
        NotDenseError: If it is not certain that the module computes only these layers.
    """
    if module.is_stateful():
        raise NotDenseError("it has memory")
    check_unwatched(module)
    if own := [name for name in (*METHODS, "forward_train") if name in vars(module)]:
        raise NotDenseError(f"it has a {own[0]}() of its own")
    if type(module).forward_train is not RLModule.forward_train:
        raise NotDenseError(f"{type(module).__name__} has a forward_train() of its own")
    is_default = isinstance(module, DefaultRLModule) and all(
        getattr(type(module), name) is getattr(DefaultRLModule, name) for name in METHODS
    )
    found = _default_layers(module) if is_default else _traced_layers(module)
    if found.net.logits == found.net.values:
        raise NotDenseError("its values are its logits")
    return found._replace(net=found.net._replace(sizes=_sizes(module, found.net)))


def check_unwatched(module: RLModule) -> None:
    """Raise NotDenseError if the module has hooks or is compiled, so that a pass may run other code than its layers."""
    for part in parts_of(module):
        if is_watched(part):
            raise NotDenseError(f"a {type(part).__name__} in it has hooks, or is compiled")
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
    raise NotDenseError(f"the gradient of a {kind.__name__} policy is not compiled")


# Default networks.


def _default_layers(module: Any) -> ModuleLayers:
    encoder, trunk = _split(layers_in_order(module.trunk))
    vf_encoder, vf_trunk = (encoder, trunk) if module.vf_trunk is None else _split(layers_in_order(module.vf_trunk))
    if (encoder is None) != (vf_encoder is None):
        raise NotDenseError("policy and value read observations by different encoders")
    first = next((part for part in (*trunk, *layers_in_order(module.pi)) if type(part) is nn.Linear), None)
    if first is None:
        raise NotDenseError("it has no linear layer")
    if module._mask_key is not None and not module.masks_actions:
        raise NotDenseError(f"{type(module).__name__} may change the logits after they were masked")
    layers = DenseLayers(first.in_features)
    policy = layers_in_order(module.pi)
    log_std = policy.pop() if type(policy[-1]) is FreeLogStd else None
    features = layers.add(trunk)
    logits = layers.add(policy, features)
    values = OBSERVATIONS
    if module.vf is not None:
        vf_features = features if module.vf_trunk is None else layers.add(vf_trunk)
        values = layers.add(layers_in_order(module.vf), vf_features)
    row = None if log_std is None else weights_of(log_std, "log_std", (layers.n_out(logits),))
    net = DenseNet(first.in_features, layers.layers, logits, values, None, row)

    def observe(obs: Any) -> Tensor:
        seen = obs if module._observation_key is None else obs[module._observation_key]
        return seen if encoder is None else encoder(seen)

    return ModuleLayers(net, observe, module._mask_key)


def _split(layers: list[nn.Module]) -> tuple[nn.Module | None, list[nn.Module]]:
    """Split off the leading encoder, if there is one."""
    if not layers or type(layers[0]) not in ENCODERS:
        return None, layers
    if next(layers[0].parameters(), None) is not None:
        raise NotDenseError("its encoder has parameters")
    return layers[0], layers[1:]


# Modules of other classes, which are traced.


class _Forward(nn.Module):
    """A module's training forward pass, with observations as its only argument."""

    def __init__(self, module: RLModule):
        super().__init__()
        self.traced = module

    def forward(self, obs: Any) -> dict[str, Any]:
        return dict(self.traced._forward_train({Columns.OBS: obs}))


class _Tracer(fx.Tracer):
    """Stops at code under torch.no_grad() or torch.autocast(), which a graph does not show."""

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            raise NotDenseError("torch.no_grad() or torch.autocast()")
        return super().create_node(*args, **kwargs)


SAME = {"float", "contiguous"}  # methods that leave float32 rows unchanged
FUNCTIONS = {
    torch.tanh: nn.Tanh, nn.functional.tanh: nn.Tanh, torch.relu: nn.ReLU, nn.functional.relu: nn.ReLU,
    nn.functional.silu: nn.SiLU, nn.functional.gelu: nn.GELU, nn.functional.elu: nn.ELU,
}  # fmt: skip
ACTIVATING_METHODS = {"tanh": nn.Tanh, "relu": nn.ReLU}


def _traced_layers(module: RLModule) -> ModuleLayers:
    if module.masks_actions:
        raise NotDenseError("it masks actions itself")
    before, versions, randomness = _contents(module), _versions(module), _randomness()
    root = _Forward(module)
    try:
        graph = _Tracer().trace(root)
    except Exception as error:  # module code may raise anything at a placeholder
        raise NotDenseError(f"its forward pass is more than layers: {type(error).__name__}: {error}") from None
    after = _contents(module)
    is_same = len(before) == len(after) and all(map(operator.is_, before, after)) and versions == _versions(module)
    if not is_same:
        raise NotDenseError("its forward pass changes attributes")
    if _randomness() != randomness:
        raise NotDenseError("its forward pass draws random numbers")
    return _GraphReader(root, graph).read()


def _contents(module: nn.Module) -> list[Any]:
    """List all attributes, and the items of attributes that are containers."""
    attributes = [value for part in parts_of(module) for value in vars(part).values()]
    held = [value.values() if isinstance(value, dict) else value for value in attributes]
    return [*attributes, *(each for value in held if isinstance(value, CONTAINERS) for each in value)]


def _versions(module: nn.Module) -> list[int]:
    """Return the tensors' version counters, which change when tensors are written to."""
    return [each._version for each in (*module.parameters(), *module.buffers()) if not each.is_inference()]


def _randomness() -> tuple[Any, ...]:
    """Return the states of the global random generators."""
    _, _, *of_numpy = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), of_numpy


class _GraphReader:
    """Reads the layers from a graph of operations."""

    def __init__(self, root: nn.Module, graph: fx.Graph):
        self._parts = dict(root.named_modules())
        self._parameters = dict(root.named_parameters())
        self._graph = graph
        self._paths: dict[fx.Node, tuple[Any, ...]] = {}  # nodes that are the observation or parts of it
        self._places: dict[fx.Node, int] = {}  # nodes that are outputs of layers
        self._log_stds: dict[fx.Node, Tensor] = {}  # nodes that repeat this parameter in each row
        self._rows: dict[fx.Node, tuple[int, Tensor | None]] = {}  # nodes that are [means, log_std]
        self._squeezed: dict[fx.Node, int] = {}  # nodes that are a layer's only output, squeezed
        self._obs_path: tuple[Any, ...] | None = None
        self._n_obs = 0
        self._layers: DenseLayers | None = None

    def read(self) -> ModuleLayers:
        """Read all nodes in execution order."""
        outputs: Any = None
        for node in self._graph.nodes:
            if node.op == "output":
                outputs = node.args[0]
            elif node.users or node.op.startswith("call_"):  # unused calls may modify inputs of others
                self._take(node)
        layers: Any = self._layers
        logits, log_std = self._logits(outputs.get(Columns.ACTION_DIST_INPUTS))
        values = self._squeezed.get(outputs.get(Columns.VF_PREDS), OBSERVATIONS)
        if Columns.VF_PREDS in outputs and values == OBSERVATIONS:
            raise NotDenseError(f"{Columns.VF_PREDS!r} is not the single output of a layer, squeezed")
        if {Columns.ACTION_MASK} & outputs.keys():
            raise NotDenseError(f"it outputs {Columns.ACTION_MASK!r}")
        if log_std is not None and (log_std.shape != (layers.n_out(logits),) or not log_std.is_contiguous()):
            raise NotDenseError("its standard deviations do not have the shape of its means")
        path: Any = self._obs_path

        def observe(obs: Any) -> Tensor:
            for key in path:
                obs = obs[key]
            return obs

        return ModuleLayers(DenseNet(self._n_obs, layers.layers, logits, values, None, log_std), observe, None)

    def _logits(self, node: Any) -> tuple[int, Tensor | None]:
        if node in self._rows:
            return self._rows[node]
        if node not in self._places:
            raise NotDenseError(f"{Columns.ACTION_DIST_INPUTS!r} is not the output of a layer")
        return self._places[node], None

    def _take(self, node: fx.Node) -> None:
        source: Any = node.args[0] if node.args else None
        if node.op == "placeholder":
            self._paths[node] = ()
        elif node.op == "get_attr":
            self._log_stds[node] = self._parameter(node)
        elif node.op == "call_module":
            self._places[node] = self._layer(self._parts[str(node.target)], source)
        elif node.target is operator.getitem and source in self._paths and isinstance(node.args[1], str):
            self._paths[node] = (*self._paths[source], node.args[1])
        elif node.target in FUNCTIONS and len(node.args) == 1 and not node.kwargs:
            self._places[node] = self._layer(FUNCTIONS[node.target](), source)  # type: ignore[index]
        elif node.target in ACTIVATING_METHODS and len(node.args) == 1:
            self._places[node] = self._layer(ACTIVATING_METHODS[str(node.target)](), source)
        elif node.target in SAME and len(node.args) == 1 and not node.kwargs:
            self._alias(node, source)
        elif self._is_squeeze(node):
            self._squeezed[node] = self._places[source]
        elif node.target in ("expand", "expand_as") and source in self._log_stds:
            self._log_stds[node] = self._log_stds[source]
        elif node.target is torch.cat and node.args and self._is_gaussian(node):
            means, log_std = source
            self._rows[node] = self._places[means], self._log_stds[log_std]
        else:
            raise NotDenseError(f"its forward pass has {node.format_node()}")

    def _parameter(self, node: fx.Node) -> Tensor:
        parameter = self._parameters.get(str(node.target))
        if type(parameter) is not nn.Parameter or parameter.dtype is not torch.float32 or parameter.dim() != 1:
            raise NotDenseError(f"its forward pass reads {node.target}")
        return parameter

    def _layer(self, part: nn.Module, source: Any) -> int:
        """Add a layer; returns its index."""
        if source in self._paths:
            if self._layers is None and type(part) is nn.Linear:
                self._n_obs, self._obs_path = part.in_features, self._paths[source]
                self._layers = DenseLayers(self._n_obs)
            if self._layers is None or self._paths[source] != self._obs_path:
                raise NotDenseError("its layers do not read the same array of the observations")
            return self._layers.add([part])
        if source not in self._places:
            raise NotDenseError(f"a {type(part).__name__} in it does not follow a layer")
        layers: Any = self._layers
        place = self._places[source]
        if type(part) is nn.Linear:
            return int(layers.add([part], place))
        if type(part) not in ACTIVATIONS or getattr(part, "approximate", "none") != "none":
            raise NotDenseError(f"no compiled kernel for layer {part}")
        if len(source.users) > 1 or layers.layers[place].activation != "linear":
            raise NotDenseError(f"a {type(part).__name__} in it is not the only one to read a linear layer")
        layers.activate(place, part)
        return place

    def _alias(self, node: fx.Node, source: Any) -> None:
        known: Any = (self._paths, self._places, self._squeezed)
        for places in known:
            if source in places and (places is self._paths or len(source.users) == 1):  # an activation may follow
                places[node] = places[source]
                return
        raise NotDenseError(f"its forward pass has {node.format_node()}")

    def _is_squeeze(self, node: fx.Node) -> bool:
        source: Any = node.args[0] if node.args else None
        if source not in self._places or self._layers is None or self._layers.n_out(self._places[source]) != 1:
            return False
        if node.target is operator.getitem:
            return node.args[1] in ((slice(None), 0), (Ellipsis, 0))
        return node.target in ("squeeze", torch.squeeze) and node.args[1:] in ((-1,), (1,)) and not node.kwargs

    def _is_gaussian(self, node: fx.Node) -> bool:
        parts: Any = node.args[0]
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        if dim not in (-1, 1) or len(parts) != 2:
            return False
        return parts[0] in self._places and parts[1] in self._log_stds

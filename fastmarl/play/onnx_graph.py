"""A greedy policy as a torch module that takes only tensors, and its export to ONNX."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from fastmarl.core.connectors.base import GetActions, NormalizeAndClipActions, are_boxes
from fastmarl.core.connectors.flatten_observations import FlattenObservations
from fastmarl.core.connectors.mean_std_filter import MeanStdFilter
from fastmarl.core.connectors.rllib_pieces import class_name
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.packages import how_to_install
from fastmarl.core.kernels.normalize import EPSILON
from fastmarl.core.modules.base import copied
from fastmarl.core.modules.distributions.base import Distribution
from fastmarl.core.modules.distributions.discrete import MultiCategorical
from fastmarl.core.modules.distributions.nested import MultiDistribution
from fastmarl.core.modules.encoders import OneHot
from fastmarl.core.modules.masking import masked
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces, with_leaf_spaces
from fastmarl.core.spaces.masks import MASK, choices_of, mask_key
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.core.store.block import Key, leaves_of
from fastmarl.runner.state.saved_policy import ModuleParts, PolicyOptions

OBS, ACTION, STATE_IN, STATE_OUT = "obs", "action", Columns.STATE_IN, Columns.STATE_OUT
MISSING = f"export_onnx() needs the packages onnx and onnxscript: {how_to_install('onnx')}"


class GreedyGraph(nn.Module):
    """Maps observations [n, ...], recurrent states and masks to the most likely env actions and next states.

    Args:
        parts: The module and its connectors.
        options: Options of the runner.
        takes_mask: True to add an input for action masks [n, choices].

    Attributes:
        inputs: Name -> example input with two rows, in order.
        output_names: Names of the outputs, in order.

    Raises:
        ConfigError: If a connector cannot be exported, or the action space does not support masks.
    """

    def __init__(self, parts: ModuleParts, options: PolicyOptions, *, takes_mask: bool):
        super().__init__()
        if options.inference_dtype != "float32":
            raise ConfigError(f"export_onnx() computes in float32, but inference_dtype is {options.inference_dtype!r}")
        assert parts.module.action_space is not None
        self.module, self._action_space = copied(parts.module), parts.module.action_space
        sent_space = parts.connectors.sent_space
        self._raw_layout = parts.connectors.sent_layout
        if any(leaf.dtype == object for leaf in self._raw_layout.leaves):
            raise ConfigError(f"ONNX supports only arrays, but the observation space {sent_space} has other parts")
        self._connectors = _layers_of(parts.connectors.connectors, sent_space)
        self._layout = parts.connectors.layout
        key = mask_key(sent_space, self._action_space)
        paths = [leaf.path for leaf in self._raw_layout.leaves]
        self._masks = [i for i, path in enumerate(paths) if key is not None and path[:1] == (key,)]
        if takes_mask and (self._masks or not choices_of(self._action_space)):
            raise ConfigError(f"action_mask=True needs Discrete or MultiDiscrete actions, whose masks are not in the "
                              f"observations, got actions {self._action_space} and observations {sent_space}"
                              )  # fmt: skip
        self._takes_mask = takes_mask
        self._initial = parts.module.get_initial_state() if parts.module.is_stateful() else None
        self._actions = nn.ModuleList([_EnvAction(space, options) for space in leaf_spaces(self._action_space)])
        self._action_layout = RowLayout(self._action_space)
        self.inputs = self._examples()
        state_names = [name.replace(STATE_IN, STATE_OUT, 1) for name in self.inputs if name.startswith(STATE_IN)]
        action_names = _distinct([_name(ACTION, leaf.path) for leaf in self._action_layout.leaves])
        self.output_names = action_names + state_names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        n_obs = len(self._raw_layout.leaves)
        raw, states = list(inputs[:n_obs]), list(inputs[n_obs : len(inputs) - self._takes_mask])
        mask = inputs[-1] if self._takes_mask else None
        if self._masks:
            mask = torch.cat([raw[i].reshape(raw[i].shape[0], -1) for i in self._masks], 1)
        leaves = raw
        for connector in self._connectors:
            leaves = connector(leaves)
        # Runners pass float32 to modules.
        leaves = [leaf.float() if leaf.dtype is torch.float64 else leaf for leaf in leaves]
        outputs = self.module.forward_inference(self._batch(leaves, states))
        chosen = leaves_of({Columns.ACTIONS: self._chosen(outputs, mask)})
        keys = [_key(leaf.path) for leaf in self._action_layout.leaves]
        actions = [layer(chosen[key]) for layer, key in zip(self._actions, keys, strict=True)]
        if self._initial is None:
            return tuple(actions)
        states_out = dict(flatten_struct(outputs[STATE_OUT]))
        return (*actions, *(states_out[path] for path, _ in flatten_struct(self._initial)))

    def _batch(self, leaves: list[Tensor], states: list[Tensor]) -> dict[str, Any]:
        if self._initial is None:
            return {OBS: self._layout.nest(leaves)}
        remaining = iter(states)
        state = map_struct(lambda _: next(remaining), self._initial)
        return {OBS: self._layout.nest([leaf.unsqueeze(1) for leaf in leaves]), STATE_IN: state}

    def _chosen(self, outputs: dict[str, Any], mask: Tensor | None) -> Any:
        """Return the most likely raw actions, before scaling and clipping."""
        if Columns.ACTIONS in outputs:
            return map_struct(self._without_time, outputs[Columns.ACTIONS])
        logits = self._without_time(outputs[Columns.ACTION_DIST_INPUTS])
        if mask is not None and not self.module.masks_actions:
            logits = masked(logits, mask)
        return _likeliest(self.module.get_inference_action_dist_cls(), logits)

    def _without_time(self, leaf: Tensor) -> Tensor:
        return leaf if self._initial is None else leaf.squeeze(1)

    def _examples(self) -> dict[str, Tensor]:
        names = [_name(OBS, leaf.path) for leaf in self._raw_layout.leaves]
        examples = [torch.from_numpy(np.zeros((2, *leaf.shape), leaf.dtype)) for leaf in self._raw_layout.leaves]
        for path, leaf in flatten_struct(self._initial) if self._initial is not None else ():
            names.append(_name(STATE_IN, path))
            examples.append(torch.stack([torch.as_tensor(leaf)] * 2))
        if self._takes_mask:
            names.append(MASK)
            examples.append(torch.ones((2, sum(choices_of(self._action_space))), dtype=torch.bool))
        return dict(zip(_distinct(names), examples, strict=True))


class _Normalise(nn.Module):
    """MeanStdFilter with fixed statistics, applied to each leaf."""

    def __init__(self, connector: MeanStdFilter, is_box: Sequence[bool]):
        super().__init__()
        self._is_box = list(is_box)
        self._clip = connector.clip_by_value
        self.means, self.stds = nn.ParameterList(), nn.ParameterList()
        for moments in connector.stats:
            has_std = connector.de_std_to_one and moments.count > 0
            mean = moments.mean if connector.de_mean_to_zero else np.zeros_like(moments.mean)
            std = moments.std + EPSILON if has_std else np.ones_like(moments.mean)
            for arrays, array in ((self.means, mean), (self.stds, std)):
                arrays.append(nn.Parameter(torch.from_numpy(array), requires_grad=False))

    def forward(self, leaves: list[Tensor]) -> list[Tensor]:
        moments = zip(self.means, self.stds, strict=True)
        return [self._one(leaf, *next(moments)) if is_in else leaf
                for leaf, is_in in zip(leaves, self._is_box, strict=True)]  # fmt: skip

    def _one(self, leaf: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        values = (leaf.reshape(leaf.shape[0], -1).double() - mean) / std
        if self._clip is not None:
            values = values.clamp(-self._clip, self._clip)
        return values.float().reshape(leaf.shape)


class _Flatten(nn.Module):
    """FlattenObservations as a layer that returns a single float32 leaf."""

    def __init__(self, spaces: Sequence[Any]):
        super().__init__()
        self.parts = nn.ModuleList([_flat_part(space) for space in spaces])

    def forward(self, leaves: list[Tensor]) -> list[Tensor]:
        return [torch.cat([part(leaf) for part, leaf in zip(self.parts, leaves, strict=True)], 1)]


class _Floats(nn.Module):
    def forward(self, leaf: Tensor) -> Tensor:
        return leaf.reshape(leaf.shape[0], -1).float()


class _EnvAction(nn.Module):
    """Converts raw actions of a single action space leaf to env actions."""

    low: Tensor
    high: Tensor
    start: Tensor

    def __init__(self, space: Any, options: PolicyOptions):
        super().__init__()
        dtype = np.dtype(np.int64 if isinstance(space, gym.spaces.Discrete) else space.dtype).newbyteorder("=")
        self._dtype = torch.from_numpy(np.zeros(1, dtype)).dtype
        self._shape = tuple(space.shape)
        is_box = isinstance(space, gym.spaces.Box)
        is_bounded = is_box and bool(space.bounded_below.all() and space.bounded_above.all())
        self._scales = options.normalize_actions and is_bounded
        self._clips = is_box and options.clip_actions and not options.normalize_actions
        if self._scales or self._clips:
            self.register_buffer("low", torch.from_numpy(space.low.astype(dtype)))
            self.register_buffer("high", torch.from_numpy(space.high.astype(dtype)))
        start = np.asarray(getattr(space, "start", 0), dtype)
        if start.any():
            self.register_buffer("start", torch.from_numpy(start))
        self._starts = bool(start.any())

    def forward(self, raw: Tensor) -> Tensor:
        raw = raw.reshape(raw.shape[0], *self._shape)
        if self._scales:
            width = self.high / 2 - self.low / 2  # finite, however far apart the bounds are
            return torch.clamp(self.low + (raw + 1) * width, self.low, self.high).to(self._dtype)
        if self._clips:
            raw = torch.clamp(raw, self.low, self.high)
        action = raw.to(self._dtype)
        return action + self.start if self._starts else action


def save_graph(graph: GreedyGraph, path: str | os.PathLike[str]) -> None:
    """Write the graph to a file, with a dynamic number of rows.

    Raises:
        ImportError: If a package is missing.
        ConfigError: If torch cannot export the module.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(MISSING) from error
    rows = {0: torch.export.Dim.DYNAMIC}
    try:
        with warnings.catch_warnings():  # torch warns about its internals
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                graph.eval(),
                tuple(graph.inputs.values()),
                input_names=list(graph.inputs),
                output_names=graph.output_names,
                dynamic_shapes={"inputs": tuple(rows for _ in graph.inputs)},
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch raises many exception types
        name = type(graph.module._net()).__name__
        raise ConfigError(f"torch.onnx can't export the module of class {name}: {error}") from error
    assert program is not None
    program.save(os.fspath(path))


def _likeliest(kind: type[Distribution], logits: Tensor) -> Any:
    """Compute `kind.deterministic()` without cached values, because torch traces it with placeholders."""
    bound, attributes = vars(kind).get("bound", (kind, ()))
    given = dict(attributes)
    if bound is MultiDistribution:
        parts = zip(given["kinds"], logits.split(given["input_dims"], -1), strict=True)
        chosen = [_likeliest(each, part) for each, part in parts]
        return tuple(chosen) if given["keys"] is None else dict(zip(given["keys"], chosen, strict=True))
    if bound is MultiCategorical:
        choices = [part.argmax(-1) for part in logits.split(given["nvec"], -1)]
        return torch.stack(choices, -1).reshape(logits.shape[0], *given["shape"])
    return kind.deterministic(logits)


def _layers_of(connectors: Sequence[Any], space: gym.Space) -> nn.ModuleList:
    layers = nn.ModuleList()
    for connector in connectors:
        spaces = leaf_spaces(space)
        if type(connector) is MeanStdFilter:
            is_box = are_boxes(space)
            layers.append(_Normalise(connector, is_box))
            floats = [gym.spaces.Box(-np.inf, np.inf, each.shape) if box else each
                      for each, box in zip(spaces, is_box, strict=True)]  # fmt: skip
            space = with_leaf_spaces(space, floats)
        elif type(connector) is FlattenObservations:
            layers.append(_Flatten(spaces))
            space = gym.spaces.flatten_space(space)
        elif type(connector) not in (GetActions, NormalizeAndClipActions):
            raise ConfigError(f"{class_name(connector)} can't be part of an ONNX graph: only MeanStdFilter and "
                              f"FlattenObservations can, since others may read an agent's earlier steps or change its "
                              f"actions")  # fmt: skip
    return layers


def _flat_part(space: Any) -> nn.Module:
    if isinstance(space, gym.spaces.Discrete):
        return OneHot([int(space.n)], [int(space.start)])
    if isinstance(space, gym.spaces.MultiDiscrete):
        return OneHot(space.nvec.ravel().tolist(), space.start.ravel().tolist())
    return _Floats()


def _name(what: str, path: tuple) -> str:
    """Join a path into a name such as "obs.position.0"."""
    return ".".join(map(str, (what, *path)))


def _distinct(names: list[str]) -> list[str]:
    """Return the names; raise ConfigError if two are equal, such as key "a.b" and key "b" nested in "a"."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two inputs or outputs of the graph have the name {twice[0]!r}: keys of nested spaces are "
                          f"joined with dots; rename a key")  # fmt: skip
    return names


def _key(path: tuple) -> Key:
    return (Columns.ACTIONS, *path) if path else Columns.ACTIONS

"""One module: the net of one or more agents."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.distributions.base import Distribution
from fastmarl.core.modules.distributions.nested import get_action_dist_cls
from fastmarl.core.modules.masking import masked_outputs
from fastmarl.core.public import public
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.states import check_mapping


@public("fastmarl.modules")
class RLModule(torch.nn.Module):
    """Base of modules; write `setup()` and `_forward()`, or `_forward_exploration()` and its like for single phases.

    A batch is a dict with "obs": tensors [B, ...] nested as the observation space, for the module to keep or change.
    The output is a dict with "action_dist_inputs" [B, k] (the logits of the action distribution) or "actions", and
    whatever else shall be recorded, such as "vf_preds" [B]; every entry has B rows.

    A module with memory has a `get_initial_state()`. Its observations are [B, T, ...], T = 1 while sampling, and the
    batch also has "state_in" [B, ...]; its outputs are [B, T, ...], but "state_out" [B, ...], the state after step T.

    Args:
        observation_space, action_space: of its agents.
        inference_only: the module will only act, so it may leave out what only training needs.
        model_config: options, as the module understands them.
        kwargs: anything else `setup()` wants to find in `self.kwargs`.
    """

    masks_actions = False
    """Whether the outputs have action masks applied already; else the sampler and `forward_train()` apply them to
    "action_dist_inputs"."""

    capturable = False
    """Whether the forward methods for acting may be recorded once and replayed on a GPU (a CUDA graph): they do the
    same operations at every call, whatever the numbers are, without waiting for the GPU, read nothing that changes but
    their batch, parameters and buffers, and do not write to their batch; `t` is None for them. A class that overrides
    one must say so again."""

    def __init__(
        self,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        *,
        inference_only: bool = False,
        model_config: Any = None,
        **kwargs: Any,
    ):
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.inference_only = inference_only
        self.model_config = {} if model_config is None else model_config
        self.kwargs = kwargs
        self.action_dist_cls: type[Distribution] | None = None
        self.setup()

    def setup(self) -> None:
        """Make the layers; the constructor's arguments are attributes by now.

        May set `self.action_dist_cls`; else the action space decides.
        """

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} needs a _forward(batch)")

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch)

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch)

    def forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The outputs, for no phase in particular."""
        return self._forward(batch, **kwargs)

    def forward_exploration(self, batch: dict[str, Any], t: int | None = None, **kwargs: Any) -> dict[str, Any]:
        """The outputs for acting with exploration; `t`, for schedules, is the number of env steps that the runner has
        made in its life, times `num_env_runners`."""
        return self._forward_exploration(batch, t=t, **kwargs)

    def forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The outputs for acting as well as possible."""
        return self._forward_inference(batch, **kwargs)

    def forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The outputs that the loss needs. Logits are masked as they were when the actions were drawn: by the batch's
        column "action_mask", or else by the mask in its observations."""
        return masked_outputs(self, batch, self._forward_train(batch, **kwargs))

    def get_initial_state(self) -> dict[str, Any]:
        """The memory before the first step: nested dict of arrays or tensors without a batch axis. {}: no memory."""
        return {}

    def is_stateful(self) -> bool:
        """Whether the module has memory."""
        state = self.get_initial_state()
        return len(state) > 0 if isinstance(state, dict) else state is not None

    def get_exploration_action_dist_cls(self) -> type[Distribution]:
        """The distribution that "action_dist_inputs" are for, in exploration.

        Raises:
            ConfigError: there is none for the action space.
        """
        if self.action_dist_cls is not None:
            return self.action_dist_cls
        if self.action_space is None:
            raise ConfigError(f"{type(self._net()).__name__} needs an action_space (or action_dist_cls) to choose "
                              f"actions; see fastmarl.modules.as_rl_module()")  # fmt: skip
        return get_action_dist_cls(self.action_space)

    def get_inference_action_dist_cls(self) -> type[Distribution]:
        """The same for inference."""
        return self.get_exploration_action_dist_cls()

    def get_train_action_dist_cls(self) -> type[Distribution]:
        """The same for training."""
        return self.get_exploration_action_dist_cls()

    def get_state(self) -> dict[str, Any]:
        """Copies of all weights and buffers, by names as in `state_dict()`; bfloat16 comes as float32. What a layer's
        `get_extra_state()` returns is among them as it is; checkpoints hold it if it is made of what these can hold."""
        return {
            name: copy.deepcopy(value) if _is_extra(name) else _to_array(value)
            for name, value in self._net().state_dict().items()
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError if `set_state()` can't take `state`, without a change to anything: all of a state
        is checked before any is taken. A class with a `set_state()` of its own says by its own what fits it."""
        if type(self).set_state is RLModule.set_state:
            self._read(state)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state()` gave.

        Raises:
            ConfigError: names, shapes or kinds of numbers are those of another net; nothing was changed. Nor was it
                if a layer's own `set_extra_state()` raises an error, which comes as it is.
        """
        given = self._read(state)
        before = self.get_state() if any(map(_is_extra, given)) else None
        try:
            self._net().load_state_dict(given)
        except Exception:
            if before is not None:
                self._net().load_state_dict(self._read(before))
            raise

    def _read(self, state: Mapping[str, Any]) -> dict[str, Any]:
        net = self._net()
        check_mapping(f"the state of a {type(net).__name__}", state)
        own = net.state_dict()
        unneeded = training_only(self, own)
        if unneeded and unneeded.isdisjoint(state):
            state = {**{name: own[name] for name in unneeded}, **state}
        given = {
            name: _as_own(own.get(name), value) if _is_extra(name) else _to_tensor(name, value)
            for name, value in state.items()
        }
        problems = _differences(own, given)
        if problems:
            raise ConfigError(f"this state is not one of this {type(net).__name__}: {'; '.join(problems)}")
        return given

    def _net(self) -> torch.nn.Module:
        """Whose weights the state consists of."""
        return self


Module = TypeVar("Module", bound=torch.nn.Module)


def copied(module: Module) -> Module:
    """Return a deep copy. Tensors with a history, as `torch.nn.utils.weight_norm` leaves them, are copied without it:
    `copy.deepcopy()` refuses them."""
    attributes = (value for part in module.modules() for value in vars(part).values())
    computed = [value for value in attributes if isinstance(value, torch.Tensor) and not value.is_leaf]
    return copy.deepcopy(module, {id(tensor): tensor.detach().clone() for tensor in computed})


def training_only(module: RLModule, names: Iterable[str]) -> set[str]:
    """Names, of these, of weights that only training needs: they belong to attributes that RLlib's method
    `get_non_inference_attributes()` returns. There are none without that method, or if the module was made with
    `inference_only`."""
    net = module._net()
    attributes = getattr(net, "get_non_inference_attributes", None)
    if attributes is None or getattr(net, "inference_only", False):
        return set()
    paths = tuple(attributes())
    return {name for name in names if name in paths or name.startswith(tuple(f"{path}." for path in paths))}


def _is_extra(name: str) -> bool:
    """Whether it is torch's name for what a layer's `get_extra_state()` returns: anything."""
    return isinstance(name, str) and name.split(".")[-1] == "_extra_state"


def _as_own(own: Any, given: Any) -> Any:
    """A copy of an entry of an extra state; an array from a checkpoint is a tensor where the module itself has one."""
    if isinstance(own, torch.Tensor) and isinstance(given, np.ndarray):
        return _to_tensor("an extra state", given.copy())
    if type(given) is dict and isinstance(own, dict):
        return {key: _as_own(own.get(key), value) for key, value in given.items()}
    if type(given) in (list, tuple) and isinstance(own, (list, tuple)) and len(own) == len(given):
        return type(given)(map(_as_own, own, given))
    return copy.deepcopy(given)


def _to_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().copy()


def _to_tensor(name: str, value: Any) -> torch.Tensor:
    """The value as torch takes it, copied only where it must be."""
    if isinstance(value, torch.Tensor):
        return value
    try:
        array = np.asarray(value)
        return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be an array of numbers, got {type(value).__name__}: {error}") from error


def _differences(own: dict[str, Any], given: dict[str, Any]) -> list[str]:
    missing = [f"{name} is missing" for name in own if name not in given]
    unknown = [f"{name} is unknown" for name in given if name not in own]
    both = [(name, given[name], tensor) for name, tensor in own.items() if name in given and not _is_extra(name)]
    shapes = [
        f"{name} has shape {list(value.shape)}, not {list(tensor.shape)}"
        for name, value, tensor in both
        if value.shape != tensor.shape
    ]
    dtypes = [
        f"{name} is of {value.dtype}, which is no kind of {tensor.dtype}"
        for name, value, tensor in both
        if not torch.can_cast(value.dtype, tensor.dtype)
    ]
    return missing + unknown + shapes + dtypes


_SPACES: WeakKeyDictionary[torch.nn.Module, list[tuple[gym.Space, gym.Space]]] = WeakKeyDictionary()


def _remember_spaces(module: torch.nn.Module, spaces: tuple[gym.Space, gym.Space]) -> None:
    """Note the spaces with which a module is wrapped; only the newest of those that differ in bounds alone."""
    others = [each for each in _SPACES.get(module, []) if _form(each) != _form(spaces)]
    _SPACES[module] = [*others, spaces]


def _form(spaces: tuple[gym.Space, gym.Space]) -> Any:
    """Return what two pairs of spaces must share for a module to treat them alike."""
    return RowLayout(spaces[0]).leaves, spaces[1]


def _known_spaces(module: torch.nn.Module) -> tuple[gym.Space | None, gym.Space | None]:
    """Return the spaces with which a module was wrapped.

    Raises:
        ConfigError: there are several.
    """
    first, *others = _SPACES.get(module, [(None, None)])
    if others:
        raise ConfigError(f"this {type(module).__name__} acts for agents with different spaces; give "
                          f"runner.module[module_id], which has those of its agents")  # fmt: skip
    return first


class AdaptedModule(RLModule):
    """Gives any torch module whose `forward(batch)` returns a dict the methods of an RLModule.

    Weights are the module's own, and so are their names in `get_state()`. A call is one of the module, and attributes
    that an RLModule doesn't have are read from it and set on it: `runner.module["p0"].encoder` is that of the module.
    """

    def __init__(
        self, module: torch.nn.Module, observation_space: gym.Space | None = None, action_space: gym.Space | None = None
    ):
        super().__init__(observation_space, action_space)
        self.module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module" or name.startswith("__"):  # while it is being made; what copy and pickle look for
                raise
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        net = self.__dict__.get("_modules", {}).get("module")
        is_own = net is None or name == "module" or name in self.__dict__ or hasattr(type(self), name)
        if not is_own and hasattr(net, name):
            setattr(net, name, value)
        else:
            super().__setattr__(name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        return self.module(*args, **kwargs)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self.module(batch)

    def get_initial_state(self) -> dict[str, Any]:
        """The wrapped module's, if it has such a method."""
        initial_state = getattr(self.module, "get_initial_state", None)
        return {} if initial_state is None else initial_state()

    def _net(self) -> torch.nn.Module:
        return self.module


def as_rl_module(
    module: torch.nn.Module, observation_space: gym.Space | None = None, action_space: gym.Space | None = None
) -> RLModule:
    """Return `module` itself if it is an RLModule (spaces that it lacks are filled in), else an RLModule around it.

    Without spaces, a module that has acted in a runner has those of its agents there; a copy of it has none.

    Raises:
        ConfigError: it is no torch module, or spaces are missing and its agents had different ones.
    """
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"expected a torch.nn.Module, got {module!r}")
    if not isinstance(module, RLModule):
        if observation_space is None or action_space is None:
            known = _known_spaces(module)
        else:
            known = observation_space, action_space
            _remember_spaces(module, known)
        return AdaptedModule(module, *known)
    if module.observation_space is None:
        module.observation_space = observation_space
    if module.action_space is None:
        module.action_space = action_space
    return module

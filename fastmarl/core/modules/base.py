"""Base class of modules, which are networks that act for one or more agents."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_mapping
from fastmarl.core.modules.distributions.base import Distribution
from fastmarl.core.modules.distributions.nested import get_action_dist_cls
from fastmarl.core.modules.masking import masked_outputs
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import serves


@public("fastmarl.modules")
class RLModule(torch.nn.Module):
    """Base class of modules; implement `setup()` and `_forward()`, or phases such as `_forward_exploration()`.

    A batch is a dict with "obs": tensors [B, ...] nested like the observation space, which the module may keep or
    modify. The output is a dict with "action_dist_inputs" [B, k] (the logits of the action distribution) or "actions",
    plus anything else to record, such as "vf_preds" [B]. Every entry has B rows.

    A recurrent module overrides `get_initial_state()`. Its observations are [B, T, ...], with T = 1 during sampling,
    and the batch also contains "state_in" [B, ...]. Its outputs are [B, T, ...], except "state_out" [B, ...], the state
    after step T.

    Args:
        observation_space: Observation space of the agents.
        action_space: Action space of the agents.
        inference_only: True if the module will only act; layers that only training uses may then be omitted.
        model_config: Options of the module.
        kwargs: Further arguments for `setup()`, available as `self.kwargs`.
    """

    training_attributes: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that only training needs; omitted if `inference_only` is set."""

    masks_actions = False
    """True if the outputs already have action masks applied.

    Otherwise, the sampler and `forward_train()` apply masks to "action_dist_inputs".
    """

    capturable = False
    """True if the forward methods for acting can be captured as a CUDA graph and replayed.

    They must perform the same operations in every call, whatever the values, without waiting for the GPU; read nothing
    that changes except their batch, parameters and buffers; and not write to their batch. They are called with
    `t=None`. A subclass that overrides one of them must set `capturable` again.
    """

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
        """Create the layers; constructor arguments are already stored as attributes.

        May set `self.action_dist_cls`; otherwise, the action space determines the distribution.
        """

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} must implement _forward(batch)")

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch)

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch)

    def forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the outputs for `batch`, regardless of phase."""
        return self._forward(batch, **kwargs)

    def forward_exploration(self, batch: dict[str, Any], t: int | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return the outputs for acting with exploration.

        Args:
            batch: Inputs of the module; see the class.
            t: Lifetime env steps of the runner times `num_env_runners`, for schedules.
        """
        return self._forward_exploration(batch, t=t, **kwargs)

    def forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the outputs for acting on `batch` without exploration."""
        return self._forward_inference(batch, **kwargs)

    def forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the outputs that the loss needs.

        Logits are masked as during sampling: by the batch column "action_mask" or, without it, by the mask in the
        observations.
        """
        return masked_outputs(self, batch, self._forward_train(batch, **kwargs))

    def get_initial_state(self) -> dict[str, Any]:
        """Return the initial recurrent state: nested arrays or tensors without a batch axis, or {}."""
        return {}

    def is_stateful(self) -> bool:
        """Return True if the module is recurrent."""
        state = self.get_initial_state()
        return len(state) > 0 if isinstance(state, dict) else state is not None

    def get_exploration_action_dist_cls(self) -> type[Distribution]:
        """Return the class of the action distribution for exploration.

        Raises:
            ConfigError: If the action space has no distribution.
        """
        if self.action_dist_cls is not None:
            return self.action_dist_cls
        if self.action_space is None:
            raise ConfigError(f"{type(self._net()).__name__} needs an action_space or action_dist_cls to choose "
                              f"actions; pass an action_space to fastmarl.modules.as_rl_module()")  # fmt: skip
        return get_action_dist_cls(self.action_space)

    def get_inference_action_dist_cls(self) -> type[Distribution]:
        """Return the class of the action distribution for inference."""
        return self.get_exploration_action_dist_cls()

    def get_train_action_dist_cls(self) -> type[Distribution]:
        """Return the class of the action distribution for training."""
        return self.get_exploration_action_dist_cls()

    def get_state(self) -> dict[str, Any]:
        """Return copies of all weights and buffers, named as in `state_dict()`; bfloat16 is converted to float32.

        Extra states of layers (`get_extra_state()`) are included unchanged; checkpoints can only store them if they
        consist of supported types.
        """
        return {
            name: copy.deepcopy(value) if _is_extra(name) else _to_array(value)
            for name, value in self._net().state_dict().items()
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError if `set_state()` would reject `state`; changes nothing.

        Runners check all parts of a state before they set any. A class that overrides `set_state()` should also
        override this method, which otherwise checks nothing.
        """
        if type(self).set_state is RLModule.set_state:
            self._read(state)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` returned by `get_state()`.

        With `inference_only`, weights that only training needs are ignored: the value network of a `DefaultRLModule`,
        and attributes returned by `get_non_inference_attributes()`.

        Raises:
            ConfigError: If names, shapes or dtypes do not match this network. The module is then unchanged, as it is
                after any error raised by a layer's `set_extra_state()`.
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
        if getattr(net, "inference_only", False):
            omitted = _below([*self.training_attributes, *getattr(net, "get_non_inference_attributes", list)()], state)
            state = {name: value for name, value in state.items() if name in own or name not in omitted}
        given = {
            name: _as_own(own.get(name), value) if _is_extra(name) else _to_tensor(name, value)
            for name, value in state.items()
        }
        problems = _differences(own, given)
        if problems:
            raise ConfigError(f"the state does not match this {type(net).__name__}: {'; '.join(problems)}")
        return given

    def _net(self) -> torch.nn.Module:
        """Return the network whose weights make up the state."""
        return self


Module = TypeVar("Module", bound=torch.nn.Module)


def copied(module: Module) -> Module:
    """Return a deep copy of a module.

    Non-leaf tensors, such as those from `torch.nn.utils.weight_norm`, are detached, because `copy.deepcopy()` rejects
    them.
    """
    attributes = (value for part in module.modules() for value in vars(part).values())
    computed = [value for value in attributes if isinstance(value, torch.Tensor) and not value.is_leaf]
    return copy.deepcopy(module, {id(tensor): tensor.detach().clone() for tensor in computed})


def training_only(module: RLModule, names: Iterable[str]) -> set[str]:
    """Return the given weight names that only training needs.

    These are the weights of attributes returned by `get_non_inference_attributes()`, as in RLlib. The result is empty
    if the module does not have this method or was created with `inference_only`.
    """
    net = module._net()
    attributes = getattr(net, "get_non_inference_attributes", None)
    if attributes is None or getattr(net, "inference_only", False):
        return set()
    return _below(attributes(), names)


def _below(paths: Iterable[str], names: Iterable[Any]) -> set[Any]:
    """Return the weight names that belong to one of the attributes `paths`."""
    beginnings = tuple(f"{path}." for path in paths)
    return {name for name in names if f"{name}.".startswith(beginnings)}


def _is_extra(name: str) -> bool:
    """Return True if torch uses `name` for a layer's extra state, which may be any object."""
    return isinstance(name, str) and name.split(".")[-1] == "_extra_state"


def _as_own(own: Any, given: Any) -> Any:
    """Copy part of an extra state; arrays from a checkpoint become tensors where the current state has tensors."""
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
    """Convert a value to a tensor, copying only if necessary."""
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
        f"{name} is of {value.dtype}, which does not fit {tensor.dtype}"
        for name, value, tensor in both
        if not torch.can_cast(value.dtype, tensor.dtype)
    ]
    return missing + unknown + shapes + dtypes


_SPACES: WeakKeyDictionary[torch.nn.Module, list[tuple[gym.Space, gym.Space]]] = WeakKeyDictionary()


def _remember_spaces(module: torch.nn.Module, spaces: tuple[gym.Space, gym.Space]) -> None:
    """Record the spaces that a module is wrapped with, replacing equivalent ones."""
    others = [each for each in _SPACES.get(module, []) if not serves(each, spaces, bounds=True)]
    _SPACES[module] = [*others, spaces]


def _known_spaces(module: torch.nn.Module) -> tuple[gym.Space | None, gym.Space | None]:
    """Return the spaces that a module was wrapped with.

    Raises:
        ConfigError: If it was wrapped with different spaces.
    """
    first, *others = _SPACES.get(module, [(None, None)])
    if others:
        raise ConfigError(f"this {type(module).__name__} acts for agents with different spaces; pass "
                          f"runner.module[module_id], which knows the spaces of its agents")  # fmt: skip
    return first


class AdaptedModule(RLModule):
    """Adds the methods of RLModule to any torch module whose `forward(batch)` returns a dict.

    `get_state()` returns the weights of the wrapped module under their original names. Calls are forwarded to that
    module, as are reads and writes of attributes that RLModule does not define: `runner.module["p0"].encoder` is its
    encoder.
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
            if name == "module" or name.startswith("__"):  # during construction, and in lookups by copy and pickle
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
        """Call the wrapped module."""
        return self.module(*args, **kwargs)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self.module(batch)

    def get_initial_state(self) -> dict[str, Any]:
        """Return the initial state of the wrapped module, or {} if it has no `get_initial_state()`."""
        initial_state = getattr(self.module, "get_initial_state", None)
        return {} if initial_state is None else initial_state()

    def _net(self) -> torch.nn.Module:
        return self.module


def as_rl_module(
    module: torch.nn.Module, observation_space: gym.Space | None = None, action_space: gym.Space | None = None
) -> RLModule:
    """Return an RLModule unchanged, except for missing spaces; wrap any other torch module in one.

    If no spaces are passed, a module that has acted in a runner gets the spaces of its agents there, but a copy of it
    does not.

    Args:
        module: Any torch module whose `forward(batch)` returns a dict.
        observation_space: Observation space of the agents.
        action_space: Action space of the agents.

    Raises:
        ConfigError: If `module` is not a torch module, or no spaces are passed and it acted for agents with different
            spaces.
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

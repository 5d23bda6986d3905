"""One module: the net of one or more agents."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.distributions import Distribution, get_action_dist_cls
from fastmarl.errors import ConfigError


class RLModule(torch.nn.Module):
    """Base of modules; write `setup()` and `_forward()`, or `_forward_exploration()` and its like for single phases.

    A batch is a dict with "obs": tensors [B, ...] nested as the observation space; they must not be changed in place.
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
    """Whether the outputs have action masks applied already; else the sampler applies them to "action_dist_inputs"."""

    capturable = False
    """Whether the forward methods for acting may be recorded once and replayed on a GPU (a CUDA graph): they do the
    same operations at every call, whatever the numbers are, without waiting for the GPU, and read nothing that changes
    but their batch, parameters and buffers; `t` is None for them. A class that overrides one must say so anew."""

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
        """The outputs that the loss needs."""
        return self._forward_train(batch, **kwargs)

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
            raise ConfigError(f"{type(self).__name__} needs an action_space (or action_dist_cls) to choose actions")
        return get_action_dist_cls(self.action_space)

    def get_inference_action_dist_cls(self) -> type[Distribution]:
        """The same for inference."""
        return self.get_exploration_action_dist_cls()

    def get_train_action_dist_cls(self) -> type[Distribution]:
        """The same for training."""
        return self.get_exploration_action_dist_cls()

    def get_state(self) -> dict[str, np.ndarray]:
        """Copies of all weights and buffers, by their names in `state_dict()`; bfloat16 comes as float32."""
        return {name: _to_array(tensor) for name, tensor in self._net().state_dict().items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state()` gave.

        Raises:
            ConfigError: names or shapes are those of another net; nothing was changed.
        """
        net = self._net()
        tensors = {name: _to_tensor(value) for name, value in state.items()}
        problems = _differences({name: value.shape for name, value in net.state_dict().items()}, tensors)
        if problems:
            raise ConfigError(f"this state is not one of this {type(net).__name__}: {'; '.join(problems)}")
        net.load_state_dict(tensors)

    def _net(self) -> torch.nn.Module:
        """Whose weights the state consists of."""
        return self


def _to_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().copy()


def _to_tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def _differences(shapes: dict[str, torch.Size], tensors: dict[str, torch.Tensor]) -> list[str]:
    missing = [f"{name} is missing" for name in shapes if name not in tensors]
    unknown = [f"{name} is unknown" for name in tensors if name not in shapes]
    return (
        missing
        + unknown
        + [
            f"{name} has shape {list(tensors[name].shape)}, not {list(shape)}"
            for name, shape in shapes.items()
            if name in tensors and tensors[name].shape != shape
        ]
    )


class AdaptedModule(RLModule):
    """Gives any torch module whose `forward(batch)` returns a dict the methods of an RLModule.

    Weights are the module's own, and so are their names in `get_state()`.
    """

    def __init__(
        self, module: torch.nn.Module, observation_space: gym.Space | None = None, action_space: gym.Space | None = None
    ):
        super().__init__(observation_space, action_space)
        self.module = module

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
    """`module` itself if it is an RLModule (spaces that it lacks are filled in), else an RLModule around it.

    Raises:
        ConfigError: it is no torch module.
    """
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"expected a torch.nn.Module, got {module!r}")
    if not isinstance(module, RLModule):
        return AdaptedModule(module, observation_space, action_space)
    if module.observation_space is None:
        module.observation_space = observation_space
    if module.action_space is None:
        module.action_space = action_space
    return module

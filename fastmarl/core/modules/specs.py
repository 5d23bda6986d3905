"""Module specifications, which can be sent to other processes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import torch

from fastmarl.core.modules.base import RLModule, as_rl_module
from fastmarl.core.modules.default import DefaultRLModule
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.objects.public import public


@public("fastmarl.modules")
@dataclass
class RLModuleSpec:
    """Specification of a single module.

    Args:
        module_class: An RLModule class, or another callable that accepts the other fields as keyword arguments and
            returns a torch module. None for the default network.
        observation_space: Observation space of the agents.
        action_space: Action space of the agents.
        inference_only: See `RLModule`.
        model_config: Options of the module; for the default network, see `DefaultModelConfig`.
    """

    module_class: Callable[..., torch.nn.Module] | None = None
    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    inference_only: bool = False
    model_config: Any = None

    def build(self) -> RLModule:
        """Create the module with newly initialised weights."""
        make = self.module_class or DefaultRLModule
        module = make(
            observation_space=self.observation_space,
            action_space=self.action_space,
            inference_only=self.inference_only,
            model_config=self.model_config,
        )
        return as_rl_module(module, self.observation_space, self.action_space)


@public("fastmarl.modules")
@dataclass
class MultiRLModuleSpec:
    """Specifications of several modules: `rl_module_specs` is a dict {module id: spec}."""

    rl_module_specs: Mapping[str, RLModuleSpec] = field(default_factory=dict)

    def build(self) -> MultiRLModule:
        """Create the modules with newly initialised weights, in the order of `rl_module_specs`."""
        return MultiRLModule({module_id: spec.build() for module_id, spec in self.rl_module_specs.items()})

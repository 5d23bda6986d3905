"""A policy: one module, and how it learns."""

import platform
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium as gym

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.public import public


@public("fastmarl.legacy")
class Policy:
    """Base of policies; write `learn_on_batch()` and what else learning needs. `TorchPolicy` has it all but the loss.

    Args:
        module: acts for the policy's agents; it is trained in place.
        config: options over `DEFAULTS`.

    Attributes:
        config: dict, the options in force.
        global_timestep: int, env steps sampled by all workers, as far as `on_global_var_update()` was told.
        num_grad_updates: int, of this policy.

    Raises:
        ConfigError: an option is not among `DEFAULTS`.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    """All options, with their defaults. A subclass has its own beside its parent's: {**Parent.DEFAULTS, ...}."""

    def __init__(self, module: RLModule, config: Mapping[str, Any] | None = None):
        if unknown := sorted((config or {}).keys() - self.DEFAULTS.keys()):
            raise ConfigError(f"{type(self).__name__} has no option {unknown[0]!r}; its options are "
                              f"{sorted(self.DEFAULTS)}")  # fmt: skip
        self.module = module
        self.config: dict[str, Any] = {**self.DEFAULTS, **(config or {})}
        self.global_timestep = 0
        self.num_grad_updates = 0

    @property
    def observation_space(self) -> gym.Space | None:
        """Of what the module sees."""
        return self.module.observation_space

    @property
    def action_space(self) -> gym.Space | None:
        return self.module.action_space

    def postprocess_trajectory(
        self, sample_batch: Any, other_agent_batches: Mapping[Any, tuple] | None = None, episode: Any = None
    ) -> Any:
        """Called with one agent's steps in one chunk of an episode, before they become part of the batch.

        Args:
            sample_batch: SampleBatch; may be changed in place. Recurrent policies find "state_out_0" and so on, [n,
                ...], in it, which the batch doesn't have.
            other_agent_batches: agent id -> (policy id, policy, SampleBatch) of the others in the same chunk.
            episode: `fastmarl.MultiAgentEpisode`, the chunk.

        Returns:
            What becomes part of the batch.
        """
        return sample_batch

    @abstractmethod
    def learn_on_batch(self, samples: Any) -> dict[str, Any]:
        """Learn from a SampleBatch; returns statistics under "learner_stats"."""
        raise NotImplementedError(f"{type(self).__name__} needs a learn_on_batch(samples)")

    def compute_gradients(self, postprocessed_batch: Any) -> tuple[Any, dict[str, Any]]:
        """(gradients, statistics)."""
        raise NotImplementedError(f"{type(self).__name__} needs a compute_gradients(batch)")

    def apply_gradients(self, gradients: Any) -> None:
        """Take a step with gradients from `compute_gradients()`, of this policy or of one like it."""
        raise NotImplementedError(f"{type(self).__name__} needs an apply_gradients(gradients)")

    def is_recurrent(self) -> bool:
        return self.module.is_stateful()

    def get_weights(self) -> dict[str, Any]:
        """Parameter name -> array."""
        return self.module.get_state()

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Take what `get_weights()` returned. Raises ConfigError for those of another module."""
        self.module.set_state(weights)

    def get_state(self) -> dict[str, Any]:
        """Weights and counters."""
        return {
            "weights": self.get_weights(),
            "global_timestep": self.global_timestep,
            "num_grad_updates": self.num_grad_updates,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with what `get_state()` returned."""
        self.set_weights(state["weights"])
        self.global_timestep = state["global_timestep"]
        self.num_grad_updates = state["num_grad_updates"]

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        """Take {"timestep": ..., "num_grad_updates": ... or None}."""
        self.global_timestep = global_vars["timestep"]
        if (updates := global_vars.get("num_grad_updates")) is not None:
            self.num_grad_updates = updates

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """func(policy, ...)"""
        return func(self, *args, **kwargs)

    def get_host(self) -> str:
        """Name of the machine."""
        return platform.node()

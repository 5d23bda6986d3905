"""The base class of policies: a module and its learning algorithm."""

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
    """Base class of policies. Subclasses implement `learn_on_batch()`; with `TorchPolicy` they need only a loss.

    Args:
        module: Acts for the policy's agents, and is trained in place.
        config: Options that override `DEFAULTS`.

    Attributes:
        config: Dict, the options in force.
        global_timestep: int, env steps sampled by all workers, as of the last `on_global_var_update()`.
        num_grad_updates: int, number of this policy's updates.

    Raises:
        ConfigError: If an option is not among `DEFAULTS`.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    """All options, with their defaults. A subclass adds its own to its parent's: {**Parent.DEFAULTS, ...}."""

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
        """The space of the observations that the module gets."""
        return self.module.observation_space

    @property
    def action_space(self) -> gym.Space | None:
        return self.module.action_space

    def postprocess_trajectory(
        self, sample_batch: Any, other_agent_batches: Mapping[Any, tuple] | None = None, episode: Any = None
    ) -> Any:
        """Process one agent's steps in one chunk of an episode; called before they become part of the batch.

        Args:
            sample_batch: SampleBatch of the steps, which may be changed in place. If the policy is recurrent, it also
                has "state_out_0" and so on [n, ...], which are not passed on to the batch.
            other_agent_batches: Agent id -> (policy id, policy, SampleBatch) of the other agents in the same chunk.
            episode: The chunk, a `fastmarl.MultiAgentEpisode`.

        Returns:
            SampleBatch that becomes part of the batch.
        """
        return sample_batch

    @abstractmethod
    def learn_on_batch(self, samples: Any) -> dict[str, Any]:
        """Update the module on the SampleBatch `samples`; returns statistics under "learner_stats"."""
        raise NotImplementedError(f"{type(self).__name__} needs a learn_on_batch(samples)")

    def compute_gradients(self, postprocessed_batch: Any) -> tuple[Any, dict[str, Any]]:
        """Return (gradients, statistics) for the SampleBatch `postprocessed_batch`, without an update."""
        raise NotImplementedError(f"{type(self).__name__} needs a compute_gradients(batch)")

    def apply_gradients(self, gradients: Any) -> None:
        """Update the module with gradients from `compute_gradients()`, of this policy or of one like it."""
        raise NotImplementedError(f"{type(self).__name__} needs an apply_gradients(gradients)")

    def is_recurrent(self) -> bool:
        return self.module.is_stateful()

    def get_weights(self) -> dict[str, Any]:
        """Return a dict parameter name -> array."""
        return self.module.get_state()

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Load weights from `get_weights()`. Raises ConfigError if they don't fit the module."""
        self.module.set_state(weights)

    def get_state(self) -> dict[str, Any]:
        """Return the weights and counters."""
        return {
            "weights": self.get_weights(),
            "global_timestep": self.global_timestep,
            "num_grad_updates": self.num_grad_updates,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state()`."""
        self.set_weights(state["weights"])
        self.global_timestep = state["global_timestep"]
        self.num_grad_updates = state["num_grad_updates"]

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        """Set the counters from `global_vars`: {"timestep": ..., "num_grad_updates": ... or None}."""
        self.global_timestep = global_vars["timestep"]
        if (updates := global_vars.get("num_grad_updates")) is not None:
            self.num_grad_updates = updates

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call func(policy, ...) and return its result."""
        return func(self, *args, **kwargs)

    def get_host(self) -> str:
        """Return the name of the machine."""
        return platform.node()

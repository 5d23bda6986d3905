"""The base class of policies, each consisting of a module and its learning algorithm."""

import os
import pickle
import platform
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import torch

from fastmarl.core.checkpoint.sealed_json import replace_file
from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.base import AdaptedModule, RLModule, as_rl_module, copied
from fastmarl.core.modules.specs import RLModuleSpec
from fastmarl.core.objects.public import public
from fastmarl.legacy.policies.policy_spec import PolicySpec, as_policy_spec

CHECKPOINT = "policy_state.pkl"


class _NoCallbacks:
    """Callbacks of a policy without a worker."""

    def on_learn_on_batch(self, **arguments: Any) -> None:
        pass


NO_CALLBACKS = _NoCallbacks()


@public("fastmarl.legacy")
class Policy:
    """Base class of policies. Subclasses implement `learn_on_batch()`; subclasses of `TorchPolicy` only need a loss.

    Args:
        module: Module that acts for the agents of the policy and is trained in place.
        config: Options that override `DEFAULTS`.

    Attributes:
        config: Dict of the active options.
        global_timestep: Number of env steps sampled by all workers, as of the last `on_global_var_update()`.
        num_grad_updates: Number of updates of this policy.
        framework: The string "torch".
        callbacks: Object with the method `on_learn_on_batch(policy=, train_batch=, result=)`; policies of a worker call
            the callbacks of the worker.

    Raises:
        ConfigError: If an option is not among `DEFAULTS`.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    """All options, with their defaults. A subclass extends the options of its parent: {**Parent.DEFAULTS, ...}."""

    framework = "torch"
    callbacks: Any = NO_CALLBACKS

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
        """Space of the observations that the module receives."""
        return self.module.observation_space

    @property
    def action_space(self) -> gym.Space | None:
        return self.module.action_space

    @property
    def observation_space_struct(self) -> Any:
        """The observation space as nested dicts and tuples of spaces."""
        return space_struct(self.observation_space)

    @property
    def action_space_struct(self) -> Any:
        """The action space as nested dicts and tuples of spaces."""
        return space_struct(self.action_space)

    def postprocess_trajectory(
        self, sample_batch: Any, other_agent_batches: Mapping[Any, tuple] | None = None, episode: Any = None
    ) -> Any:
        """Postprocess the steps of an agent in an episode chunk before they are added to the batch.

        Args:
            sample_batch: SampleBatch of the steps, which may be changed in place. For a recurrent policy, it also has
                "state_out_0" and so on, [n, ...], which are not passed on to the batch.
            other_agent_batches: Agent id -> (policy id, policy, SampleBatch) of the other agents in the same chunk.
            episode: The chunk, a `fastmarl.MultiAgentEpisode`.

        Returns:
            SampleBatch of steps to add to the batch.
        """
        return sample_batch

    @abstractmethod
    def learn_on_batch(self, samples: Any) -> dict[str, Any]:
        """Update the module on the SampleBatch `samples` and return statistics under "learner_stats"."""
        raise NotImplementedError(f"{type(self).__name__} must implement learn_on_batch(samples)")

    def compute_gradients(self, postprocessed_batch: Any) -> tuple[Any, dict[str, Any]]:
        """Return (gradients, statistics) for the SampleBatch `postprocessed_batch` without updating the module."""
        raise NotImplementedError(f"{type(self).__name__} must implement compute_gradients(batch)")

    def apply_gradients(self, gradients: Any) -> None:
        """Update the module with gradients from `compute_gradients()` of this or a similar policy."""
        raise NotImplementedError(f"{type(self).__name__} must implement apply_gradients(gradients)")

    def is_recurrent(self) -> bool:
        return self.module.is_stateful()

    def get_weights(self) -> dict[str, Any]:
        """Return a dict of parameter name -> array."""
        return self.module.get_state()

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Load weights returned by `get_weights()`; raise ConfigError if they do not match the module."""
        self.module.set_state(weights)

    def get_state(self) -> dict[str, Any]:
        """Return the weights, the counters, and a spec for creating an equivalent policy."""
        return {
            "weights": self.get_weights(),
            "global_timestep": self.global_timestep,
            "num_grad_updates": self.num_grad_updates,
            "policy_spec": spec_of(self),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `get_state()`; entries other than the weights may be missing."""
        if "weights" not in state:
            raise ConfigError(f'expected a state with the key "weights", got the keys {list(state)}')
        self.set_weights(state["weights"])
        self.global_timestep = state.get("global_timestep", self.global_timestep)
        self.num_grad_updates = state.get("num_grad_updates", self.num_grad_updates)

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "Policy":
        """Create a policy from a state returned by `get_state()`.

        Raises:
            ConfigError: If the state has no "policy_spec".
        """
        if state.get("policy_spec") is None:
            raise ConfigError('expected a state with a "policy_spec"; without one, use policy.set_state(state)')
        spec = as_policy_spec("policy_spec", state["policy_spec"])
        given = spec.module_spec()
        module = given.build() if isinstance(given, RLModuleSpec) else copied(given)
        policy: Policy = spec.policy_class(as_rl_module(module, *spec.spaces("policy_spec")), spec.config)
        policy.set_state(state)
        return policy

    def export_checkpoint(
        self,
        export_dir: str | os.PathLike[str],
        filename_prefix: Any = None,
        *,
        policy_state: Mapping[str, Any] | None = None,
        checkpoint_format: str = "cloudpickle",
    ) -> None:
        """Write the state for `from_checkpoint()` to a file in a directory, which is created if needed.

        Args:
            export_dir: The directory.
            filename_prefix: Ignored, as in RLlib.
            policy_state: The state to write; None for the result of `get_state()`.
            checkpoint_format: Must be "cloudpickle", which pickle can also read.

        Raises:
            ConfigError: If the format is not supported.
        """
        if checkpoint_format != "cloudpickle":
            raise ConfigError(f'checkpoint_format must be "cloudpickle", got {checkpoint_format!r}')
        folder = Path(export_dir)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / CHECKPOINT, pickled(self.get_state() if policy_state is None else policy_state))

    @staticmethod
    def from_checkpoint(
        checkpoint: str | os.PathLike[str], policy_ids: Collection[str] | None = None
    ) -> "Policy | dict[str, Policy]":
        """Load the policy written by `export_checkpoint()`. The file is unpickled, which may run arbitrary code.

        Args:
            checkpoint: The directory, or a directory with one subdirectory per policy, named by policy id.
            policy_ids: Ids of the policies to load from subdirectories; None for all.

        Raises:
            ConfigError: If there is no checkpoint.
        """
        folder = Path(checkpoint)
        if (folder / CHECKPOINT).is_file() and policy_ids is None:
            return Policy.from_state(pickle.loads((folder / CHECKPOINT).read_bytes()))
        found = {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{CHECKPOINT}"))}
        wanted = list(found) if policy_ids is None else list(policy_ids)
        if not wanted or (missing := [policy_id for policy_id in wanted if policy_id not in found]):
            raise ConfigError(f"expected {CHECKPOINT} in {folder}, or in a folder per policy within it; found "
                              f"the policies {list(found)}" + (f", not {missing}" if wanted else ""))  # fmt: skip
        return {policy_id: Policy.from_checkpoint(found[policy_id]) for policy_id in wanted}  # type: ignore[misc]

    def export_model(self, export_dir: str | os.PathLike[str], onnx: int | None = None) -> None:
        """Write the module to "model.pt" in `export_dir`, which is created if needed; read it with `torch.load()`.

        Raises:
            ConfigError: If `onnx` is given.
        """
        if onnx is not None:
            raise ConfigError("onnx must be None; to export ONNX, use fastmarl.Policy, see docs/deploy.md")
        folder = Path(export_dir)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.module, folder / "model.pt")

    # Methods for compatibility with RLlib.

    def get_session(self) -> None:
        """Return None, because there is no TensorFlow session."""
        return

    def get_exploration_state(self) -> dict[str, Any]:
        """Return an empty dict, because exploration samples from the module distribution, which has no state."""
        return {}

    def get_connector_metrics(self) -> dict[str, Any]:
        """Return an empty dict, because connectors belong to the runner, whose metrics include their times."""
        return {}

    def reset_connectors(self, env_id: Any) -> None:
        """Do nothing, because the runner resets its connectors with each episode; `env_id` is unused."""

    def maybe_remove_time_dimension(self, input_dict: Any) -> Any:
        """Return `input_dict` unchanged, because it has no time dimension."""
        return input_dict

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        """Set the counters from `global_vars`: {"timestep": ..., "num_grad_updates": ... or None}."""
        self.global_timestep = global_vars["timestep"]
        if (updates := global_vars.get("num_grad_updates")) is not None:
            self.num_grad_updates = updates

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call func(policy, ...) and return its result."""
        return func(self, *args, **kwargs)

    def get_host(self) -> str:
        """Return the host name of this machine."""
        return platform.node()


def spec_of(policy: Policy) -> PolicySpec:
    """Return a spec for creating an equivalent policy."""
    module: Any = policy.module
    if isinstance(module, AdaptedModule):
        made_by: Any = copied(module.module)
    elif module.kwargs:  # arguments that specs cannot contain
        made_by = copied(module)
    else:
        made_by = RLModuleSpec(module_class=type(module), model_config=module.model_config)
    spaces = policy.observation_space, policy.action_space
    return PolicySpec(type(policy), *spaces, dict(policy.config), module=made_by)


def space_struct(space: gym.Space | None) -> Any:
    """Return a space as nested dicts and tuples of leaf spaces."""
    if isinstance(space, gym.spaces.Dict):
        return {key: space_struct(part) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(map(space_struct, space.spaces))
    return space


def pickled(data: Any) -> bytes:
    """Pickle `data`, with cloudpickle if installed, which also supports lambdas and classes of the main module."""
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return pickle.dumps(data)
    return bytes(cloudpickle.dumps(data))

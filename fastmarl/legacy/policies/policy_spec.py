"""Entries of the option `policies`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import gymnasium as gym
import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.specs import RLModuleSpec
from fastmarl.core.objects.public import public

Spaces = Mapping[str, tuple[gym.Space, gym.Space]]

FIELDS = ("policy_class", "observation_space", "action_space", "config")
ACCEPTED = f"None, a PolicySpec, a tuple or dict of ({', '.join(FIELDS)}), an RLModuleSpec or a torch.nn.Module"


@public("fastmarl.legacy")
@dataclass(frozen=True)
class PolicySpec:
    """An entry of `policies` for a policy that needs more than a module.

    Args:
        policy_class: Function (module, config) -> Policy; None for the `default_policy_class` of the worker.
        observation_space: Observation space of the policy module; None for the space of the agents mapped to it.
        action_space: Action space of the policy module; None for the space of the agents mapped to it.
        config: Options of this policy, which override `policy_config` of the worker, or None.
        module: RLModuleSpec, torch.nn.Module, or None for the default network.
    """

    policy_class: Any = None
    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    config: Mapping[str, Any] | None = None
    module: Any = field(default=None, kw_only=True)

    def get_state(self) -> tuple[Any, ...]:
        """Return (policy_class, observation_space, action_space, config)."""
        return tuple(getattr(self, name) for name in FIELDS)

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | tuple[Any, ...]) -> Self:
        """Create a spec from `state`, a dict of its fields or a tuple from `get_state()`."""
        return cls(**state) if isinstance(state, Mapping) else cls(*state)

    def serialize(self) -> dict[str, Any]:
        """Return a dict of the fields for `deserialize()`."""
        return {name: getattr(self, name) for name in (*FIELDS, "module")}

    @classmethod
    def deserialize(cls, spec: Mapping[str, Any]) -> Self:
        """Create a spec from the dict returned by `serialize()`."""
        return cls(**spec)

    def with_spaces(self, spaces: tuple[gym.Space, gym.Space] | None) -> "PolicySpec":
        """Return the spec with its missing spaces filled in from `spaces`."""
        given = spaces or (None, None)
        return replace(
            self,
            observation_space=self.observation_space or given[0],
            action_space=self.action_space or given[1],
        )

    def spaces(self, policy_id: str) -> tuple[gym.Space, gym.Space]:
        """Return the spaces of the policy module.

        Args:
            policy_id: Policy id for the error message.

        Raises:
            ConfigError: If the spec has no spaces.
        """
        holders = (self, self.module)
        observation_space, action_space = (
            next((space for each in holders if (space := getattr(each, name, None)) is not None), None)
            for name in ("observation_space", "action_space")
        )
        if observation_space is None or action_space is None:
            raise ConfigError(f"there is no env to take the spaces of policy {policy_id!r} from; use "
                              f"PolicySpec(observation_space=..., action_space=...)")  # fmt: skip
        return observation_space, action_space

    def module_spec(self) -> Any:
        """Return the policy module, or a module spec with the spaces of this spec."""
        given = {name: getattr(self, name) for name in ("observation_space", "action_space")}
        given = {name: space for name, space in given.items() if space is not None}
        if not given or isinstance(self.module, torch.nn.Module):
            return self.module
        return replace(self.module or RLModuleSpec(), **given)


def as_policy_spec(policy_id: str, entry: Any) -> PolicySpec:
    """Return an entry of `policies` as a PolicySpec.

    Raises:
        ConfigError: If the entry is none of `ACCEPTED`.
    """
    if isinstance(entry, PolicySpec):
        return entry
    if isinstance(entry, Mapping) and entry.keys() <= {*FIELDS, "module"}:
        return PolicySpec.deserialize(entry)
    if isinstance(entry, tuple | list) and len(entry) == len(FIELDS):
        return PolicySpec(*entry)
    if all(hasattr(entry, name) for name in FIELDS):  # PolicySpec of RLlib
        return PolicySpec(*(getattr(entry, name) for name in FIELDS))
    if entry is None or isinstance(entry, RLModuleSpec | torch.nn.Module):
        return PolicySpec(module=entry)
    hint = ""
    if isinstance(entry, type):
        hint = f"; pass an instance, {entry.__name__}(...)" if issubclass(entry, torch.nn.Module) else (
            f"; use PolicySpec(policy_class={entry.__name__})")  # fmt: skip
    raise ConfigError(f"policies[{policy_id!r}] must be {ACCEPTED}, got {entry!r:.200}{hint}")

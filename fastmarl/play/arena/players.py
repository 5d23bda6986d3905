"""Players of games in a runner, created from modules, policies or other runners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import torch

from fastmarl.core.config import DEFAULT_MODULE_ID, EnvRunnerConfig
from fastmarl.core.connectors.base import ConnectorPiece
from fastmarl.core.connectors.env_to_module import KINDS
from fastmarl.core.errors import ConfigError, shown
from fastmarl.core.modules.base import copied
from fastmarl.core.modules.specs import RLModuleSpec
from fastmarl.play.policy import Policy
from fastmarl.runner.runner import MultiAgentEnvRunner, begin_schedules
from fastmarl.runner.state.saved_policy import PolicyOptions, connectors_of, copied_parts

ACCEPTED = "a torch.nn.Module, an RLModuleSpec, a dict of these by module id, a Policy or a MultiAgentEnvRunner"


@dataclass(frozen=True)
class Role:
    """A module that acts for some agents, with its connectors and options.

    Attributes:
        module: Module, or a spec that creates one.
        connectors: Connectors of the module, in order; the runner uses copies of them.
        learned: Option -> connector statistics, as in `EnvToModule.get_state()`.
        options: EnvRunnerConfig options with which observations, rewards and actions were processed in training.
        t: Number of env steps in training, from which exploration schedules continue.
    """

    module: Any
    connectors: Sequence[ConnectorPiece] = ()
    learned: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    t: int = 0


def roles_of(player: Any) -> Role | dict[Any, Role]:
    """Return the role of a player, or a dict of module id -> role.

    Raises:
        ConfigError: If `player` is not one of the accepted types.
    """
    if _is_module(player):
        return Role(player)
    if isinstance(player, (MultiAgentEnvRunner, Policy)):
        roles = _roles_in(player)
        return roles if len(roles) > 1 else next(iter(roles.values()))
    if isinstance(player, Mapping) and player and all(map(_is_module, player.values())):
        return {module_id: Role(module) for module_id, module in player.items()}
    is_path = isinstance(player, (str, PathLike))
    hint = "; load the policy in a folder with fastmarl.Policy.from_checkpoint()" if is_path else ""
    raise ConfigError(f"expected {ACCEPTED}, got {shown(player)}{hint}")


def roles_by_id(player: Any) -> dict[Any, Role]:
    """Return module id -> role of a player; a single module gets the default id.

    Raises:
        ConfigError: If `player` is not one of the accepted types.
    """
    if isinstance(player, Policy):
        return _roles_in(player)
    roles = roles_of(player)
    return {DEFAULT_MODULE_ID: roles} if isinstance(roles, Role) else roles


def _roles_in(player: MultiAgentEnvRunner | Policy) -> dict[Any, Role]:
    """Return module id -> role with a copy of the module, leaving the originals unchanged on their device."""
    if isinstance(player, Policy):
        options, parts = player.options, player.parts
        modules = {module_id: copied(part.module) for module_id, part in parts.items()}
    else:
        options = PolicyOptions.of(player.config, player.num_env_steps_sampled_lifetime)
        parts = copied_parts(options, player.module, player.env_to_module)
        modules = {module_id: part.module for module_id, part in parts.items()}
    states = {option: side.get_state() for option, side in connectors_of(parts).sides().items()}
    learned = {module_id: {option: state.get(module_id, {}) for option, state in states.items()} for module_id in parts}
    return {
        module_id: Role(
            modules[module_id], part.connectors.connectors, learned[module_id], options.for_config(), options.t
        )
        for module_id, part in parts.items()
    }


def _is_module(value: Any) -> bool:
    return isinstance(value, (torch.nn.Module, RLModuleSpec))


@contextmanager
def runner_of(roles: Mapping[str, Role], env: Any, options: Mapping[str, Any]) -> Iterator[MultiAgentEnvRunner]:
    """Yield a runner with these roles as modules, and stop it on exit.

    Args:
        roles: Module id -> role.
        env: Environment as in `EnvRunnerConfig(env=...)`.
        options: Other options of EnvRunnerConfig, which override the options used in training.

    Raises:
        ConfigError: If players were trained with different values of an option that is not given here.
    """
    options = {**_common_options(roles, options), **options}
    given: dict[str, Any] = {
        option: {
            module_id: [each for each in role.connectors if isinstance(each, kind)] for module_id, role in roles.items()
        }
        for option, kind in KINDS.items()
        if any(isinstance(each, kind) for role in roles.values() for each in role.connectors)
    }
    modules = {module_id: role.module for module_id, role in roles.items()}
    with MultiAgentEnvRunner(EnvRunnerConfig(env=env, policies=modules, **given, **options)) as runner:
        begin_schedules(runner, {module_id: role.t for module_id, role in roles.items()})
        for option, side in runner.env_to_module.sides().items():
            side.set_state({module_id: dict(role.learned[option]) for module_id, role in roles.items() if role.learned})
        yield runner


def _common_options(roles: Mapping[str, Role], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training options that all roles share, except the given ones."""
    common: dict[str, Any] = {}
    for module_id, role in roles.items():
        for name, value in role.options.items():
            if name not in given and common.setdefault(name, value) != value:
                raise ConfigError(f"players were trained with different options, {name}={common[name]!r} and "
                                  f"{module_id!r} with {value!r}; choose one with {name}=")  # fmt: skip
    return common

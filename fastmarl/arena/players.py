"""Who plays: what users give to be evaluated, made ready to act in a runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from fastmarl.config import EnvRunnerConfig
from fastmarl.connectors import Connector
from fastmarl.errors import ConfigError, shown
from fastmarl.modules import RLModuleSpec
from fastmarl.runner import MultiAgentEnvRunner

ACCEPTED = "a torch.nn.Module, an RLModuleSpec, a dict of these by module id, or a MultiAgentEnvRunner"


@dataclass(frozen=True)
class Role:
    """What acts for some agents.

    Attributes:
        module: or a spec that makes one.
        connectors: of the module, in order; the runner works with copies.
        learned: what these have learned: by connector, as `EnvToModule.get_state()` has it.
    """

    module: Any
    connectors: Sequence[Connector] = ()
    learned: Mapping[str, Any] = field(default_factory=dict)


def roles_of(player: Any) -> Role | dict[Any, Role]:
    """One role, or several by module id. Whatever can play is turned into these here.

    Raises:
        ConfigError: it can't.
    """
    if _is_module(player):
        return Role(player)
    if isinstance(player, MultiAgentEnvRunner):
        roles = _roles_in(player)
        return roles if len(roles) > 1 else next(iter(roles.values()))
    if isinstance(player, Mapping) and player and all(map(_is_module, player.values())):
        return {module_id: Role(module) for module_id, module in player.items()}
    raise ConfigError(f"expected {ACCEPTED}, got {shown(player)}")


def _roles_in(runner: MultiAgentEnvRunner) -> dict[Any, Role]:
    connectors, learned = runner.env_to_module, runner.env_to_module.get_state()
    return {
        module_id: Role(module, connectors[module_id].connectors, learned[module_id])
        if module_id in connectors
        else Role(module)
        for module_id, module in runner.module.items()
    }


def _is_module(value: Any) -> bool:
    """Whether it is a module or says how to make one."""
    return isinstance(value, (torch.nn.Module, RLModuleSpec))


@contextmanager
def runner_of(roles: Mapping[str, Role], env: Any, options: Mapping[str, Any]) -> Iterator[MultiAgentEnvRunner]:
    """A runner in which they act, by module id; it is stopped in the end.

    Args:
        env: as `EnvRunnerConfig(env=...)`.
        options: others of EnvRunnerConfig.
    """
    connectors = {module_id: list(role.connectors) for module_id, role in roles.items() if role.connectors}
    given: dict[str, Any] = {"env_to_module_connector": connectors} if connectors else {}
    modules = {module_id: role.module for module_id, role in roles.items()}
    with MultiAgentEnvRunner(EnvRunnerConfig(env=env, policies=modules, **given, **options)) as runner:
        runner.env_to_module.set_state({module_id: dict(roles[module_id].learned) for module_id in connectors})
        yield runner

"""Who plays: what users give to be evaluated, made ready to act in a runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fastmarl.config import EnvRunnerConfig
from fastmarl.errors import ConfigError, shown
from fastmarl.modules import RLModuleSpec
from fastmarl.runner import MultiAgentEnvRunner

ACCEPTED = "a torch.nn.Module, an RLModuleSpec, or a dict of these by module id"


@contextmanager
def runner_of(players: Any, env: Any, options: Mapping[str, Any]) -> Iterator[MultiAgentEnvRunner]:
    """The runner in which they play; one that was made here is stopped in the end.

    Args:
        players: a runner, or what `modules_of` takes.
        env: as `EnvRunnerConfig(env=...)`; None with a runner.
        options: others of EnvRunnerConfig; none with a runner.

    Raises:
        ConfigError: these don't go together.
    """
    if isinstance(players, MultiAgentEnvRunner):
        given = [*(["env"] if env is not None else []), *options]
        if given:
            raise ConfigError(f"a runner has its own config; leave out {', '.join(given)}")
        yield players
        return
    if env is None:
        raise ConfigError("modules need an env to play in, as EnvRunnerConfig(env=...) takes it")
    modules = modules_of(players)
    modules = {"default_policy": modules} if not isinstance(modules, Mapping) else modules
    with MultiAgentEnvRunner(EnvRunnerConfig(env=env, policies=modules, **options)) as runner:
        yield runner


def modules_of(players: Any) -> Any:
    """One module, or a dict of modules by id. Whatever else can play is turned into these here.

    Raises:
        ConfigError: it is something else.
    """
    if is_module(players):
        return players
    if isinstance(players, Mapping) and players and all(map(is_module, players.values())):
        return dict(players)
    raise ConfigError(f"expected {ACCEPTED}, got {shown(players)}")


def is_module(value: Any) -> bool:
    """Whether it is a module or says how to make one."""
    return isinstance(value, (torch.nn.Module, RLModuleSpec))

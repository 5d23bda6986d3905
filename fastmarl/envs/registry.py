"""Environments by name."""

import difflib
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fastmarl.errors import EnvCheckError

_registered: dict[str, Callable[[dict], Any]] = {}
_HOMES = {"magent2": "magent2.environments"}  # where a package keeps its envs, if not at its top
_EXTRAS = {"mpe2": "pettingzoo", "pettingzoo": "pettingzoo", "magent2": "pettingzoo"}


def register_env(name: str, creator: Callable[[dict], Any]) -> None:
    """Make `env=name` call `creator(env_config)`. A name may be registered anew."""
    if not callable(creator):
        raise EnvCheckError(f"expected a callable (env_config) -> env for {name!r}, got {creator!r}")
    _registered[name] = creator


def env_creator(env: Any) -> Callable[[dict], Any]:
    """What makes an env from an `env_config`.

    Args:
        env: a class or callable taking `env_config`; or a name: a registered one, or that of a PettingZoo-style module
            such as "mpe2.simple_spread_v3", whose `parallel_env(**env_config)` is called.

    Raises:
        EnvCheckError: an unknown name, a package that is not installed, or an env instance.
    """
    if isinstance(env, str):
        return _registered[env] if env in _registered else _from_module(env)
    if not inspect.isclass(env) and hasattr(env, "reset") and hasattr(env, "step"):
        name = type(env).__name__
        raise EnvCheckError(f"env is an instance of {name}, but every copy needs its own; give the class, or a "
                            f"callable such as lambda env_config: {name}(...)")  # fmt: skip
    if not callable(env):
        raise EnvCheckError(f"env must be a class, a callable (env_config) -> env, or a name, got {env!r}")
    return env


def _from_module(name: str) -> Callable[[dict], Any]:
    package, _, rest = name.partition(".")
    home = _HOMES.get(package, package)
    path = f"{home}.{rest.removeprefix('environments.')}" if package in _HOMES else name
    if not rest:
        raise EnvCheckError(_unknown(name, "it is not registered"))
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        raise EnvCheckError(_unknown(name, str(error))) from error
    if not hasattr(module, "parallel_env"):
        raise EnvCheckError(_unknown(name, f"the module {path} has no parallel_env()"))
    return lambda env_config: module.parallel_env(**env_config)


def _unknown(name: str, reason: str) -> str:
    message = f"no environment {name!r}: {reason}"
    close = difflib.get_close_matches(name, _registered)
    if close:
        message += f"; did you mean {close[0]!r}?"
    extra = _EXTRAS.get(name.partition(".")[0])
    return message + (f"; pip install 'fastmarl[{extra}]'" if extra else "; see fastmarl.register_env()")

"""The description of a run in a record: its env, options, and package versions."""

from __future__ import annotations

import ast
import platform
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastmarl.core import __version__
from fastmarl.core.checkpoint.sealed_json import check_seal
from fastmarl.core.config import EnvRunnerConfig, renamed
from fastmarl.core.envs.form import class_of
from fastmarl.core.envs.registry import env_name
from fastmarl.core.envs.remote import RemoteEnv
from fastmarl.core.envs.time_limit import TimeLimit
from fastmarl.core.errors import RecordingError
from fastmarl.core.errors.states import is_plain

FORMAT = 4
IN_LITERALS = (bytes, complex, set)  # in addition to plain data
PLATFORM: dict[str, Callable[[], str]] = {
    "python": platform.python_version,
    "machine": platform.machine,
    "platform": lambda: sys.platform,
}


def described(config: EnvRunnerConfig, env: Any, num_envs: int) -> dict[str, Any]:
    """Describe a runner config and one of its envs as JSON data."""
    limit = config.env if isinstance(config.env, TimeLimit) else None
    return {
        "format": FORMAT,
        "env": env_name(config.env if limit is None else limit.env),
        **({} if limit is None else {"max_steps": limit.max_steps}),
        "env_config": as_literal(dict(config.env_config)),
        "env_class": ".".join(_env_class(env)),
        "seed": config.seed,
        "worker_index": config.worker_index,
        "incarnation": config.incarnation,
        "num_envs": num_envs,
        "num_env_runners": config.num_env_runners,
        "remote": config.gym_env_vectorize_mode == "async",
        "late_rewards": config.late_rewards,
        "respawn": config.respawn,
        "keep_float64": config.keep_float64,
        "spaces": {repr(agent): [repr(space) for space in spaces] for agent, spaces in _spaces(env).items()},
        "versions": _versions(env),
    }


def as_literal(env_config: dict[str, Any]) -> str | None:
    """Return `env_config` as a Python literal, or None if it is not plain data."""
    try:
        if not is_plain(env_config, *IN_LITERALS):
            return None
        text = repr(env_config)
        return text if ast.literal_eval(text) == env_config else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # NaN, or nested too deeply
        return None


def env_config_in(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the recorded `env_config`, or None if it could not be recorded.

    Raises:
        RecordingError: If it cannot be read.
    """
    if meta["env_config"] is None:
        return None
    try:
        return dict(ast.literal_eval(meta["env_config"]))
    except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise RecordingError(f"can't read the recorded env_config ({error!r:.200}); pass it again: "
                             f"replay(..., env_config=...)") from error  # fmt: skip


def _spaces(env: Any) -> dict[Any, tuple[Any, Any]]:
    from fastmarl.core.envs.base import env_spaces

    return {agent: env_spaces(env, agent) for agent in getattr(env, "possible_agents", ())}


def _env_class(env: Any) -> tuple[str, str]:
    """Return (module, name) of the env class, even if the env is in a worker process."""
    return env.env_class if isinstance(env, RemoteEnv) else class_of(env)


def _versions(env: Any) -> dict[str, str]:
    """Return name -> version of the packages and the platform that an episode may depend on."""
    packages = ["numpy", "gymnasium", _env_class(env)[0].partition(".")[0]]
    names = dict.fromkeys([*PLATFORM, *packages, "fastmarl"])
    return {name: here for name in names if (here := _version_here(name))}


def _version_here(name: str) -> str:
    """Return the installed version, or "" for a user module or a package that is not installed."""
    if name in PLATFORM:
        return PLATFORM[name]()
    try:
        return __version__ if name == "fastmarl" else version(name)
    except PackageNotFoundError:
        return ""


def changed_versions(meta: Mapping[str, Any]) -> str:
    """Return a description of the packages whose versions differ from the recorded ones, or "" if none does."""
    pairs = [(name, recorded, _version_here(name)) for name, recorded in meta["versions"].items()]
    changed = [f"{name} {recorded} (here {here or 'none'})" for name, recorded, here in pairs if recorded != here]
    return ", ".join(changed)


def checked(meta: Any, path: Any) -> dict[str, Any]:
    """Check the description of a record and return it without its checksum.

    Raises:
        RecordingError: If this version of fastmarl cannot read it, or it is damaged.
    """
    number = meta.get("format") if isinstance(meta, dict) else None
    if number != FORMAT:
        versions = meta.get("versions") if isinstance(meta, dict) else None
        writer = versions.get("fastmarl") if isinstance(versions, dict) else None
        way_out = f"; read it with fastmarl {writer}, which wrote it" if writer else ""
        raise RecordingError(f"{path} does not describe a record of actions that fastmarl {__version__} can read: "
                             f"expected format {FORMAT}, got {number!r}{way_out}")  # fmt: skip
    try:
        return renamed(check_seal(meta))
    except ValueError as error:
        raise RecordingError(f"{path} is damaged, or was changed by hand: {error}; to use another env or "
                             f"env_config, pass it to replay()") from error  # fmt: skip

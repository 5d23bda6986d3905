"""The runner config in a checkpoint, from which a runner can be created.

It contains only plain data, no code: an environment is saved by name; functions and classes must be passed again.
"""

import os
from collections.abc import Mapping, Set
from dataclasses import fields
from typing import Any

from fastmarl.core.config import DEFAULTS, EnvRunnerConfig, renamed
from fastmarl.core.envs.registry import env_name, may_be_named_by_a_file
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_keys, check_mapping, is_plain

CONFIG = "config"  # key in a runner checkpoint, next to the runner state
KEYS = ("options", "left_out")
FOLDERS = ("record_actions", "output")  # a file must not decide where output is written


def plain_config(config: EnvRunnerConfig) -> dict[str, Any]:
    """Return the options that differ from their defaults; options that a file cannot store are only described."""
    options, left_out = {}, {}
    for field in fields(EnvRunnerConfig):
        name, value = field.name, getattr(config, field.name)
        if name in DEFAULTS and (value is DEFAULTS[name] or (is_plain(value) and value == DEFAULTS[name])):
            continue
        plain = env_name(value) if name == "env" else _plain(value)
        if name in FOLDERS or (plain is None and value is not None) or not is_plain(plain):
            left_out[name] = os.fspath(value) if isinstance(value, os.PathLike) else f"{value!r:.200}"
        else:
            options[name] = plain
    return {"options": options, "left_out": left_out}


def config_from(saved: Any, given: Mapping[str, Any]) -> EnvRunnerConfig:
    """Build a config from a result of `plain_config()`.

    Args:
        saved: Result of `plain_config()`.
        given: Options that replace the saved ones.

    Raises:
        ConfigError: If an option was neither saved nor passed, an option is invalid, or this program has neither
            registered nor used the environment.
    """
    check_keys("the saved config", saved, KEYS)
    options, left_out = saved["options"], saved["left_out"]
    for what, values in (("the saved options", options), ("the options that are left out", left_out)):
        check_mapping(what, values)
    options, left_out = renamed(options), renamed(left_out)
    left_out = {**left_out, **{name: options[name] for name in FOLDERS if name in options}}  # only in forged files
    if lacking := {name: text for name, text in left_out.items() if name not in given}:
        first = next(iter(lacking))
        raise ConfigError(f"checkpoints do not store functions, classes, objects or output folders, so pass these "
                          f"options again: {lacking}; use from_checkpoint(path, {first}=..., ...), or pass a config"
                          )  # fmt: skip
    if "env" not in given and not may_be_named_by_a_file(options.get("env")):
        raise ConfigError(f"its env {options.get('env')!r} has not been used by this program. Files may come from "
                          f"others, so names in them are never imported. If you trust it, name it yourself: "
                          f"from_checkpoint(path, env={options.get('env')!r})")  # fmt: skip
    try:
        return EnvRunnerConfig(**{**options, **given})
    except TypeError as error:
        raise ConfigError(f"the saved options are invalid: {error}") from error


def _plain(value: Any) -> Any:
    """Convert a set of ids to a list, and any mapping to a dict."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return sorted(value, key=str) if isinstance(value, Set) else value

"""Suggestions for misspelt environment names."""

from __future__ import annotations

import difflib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym

from fastmarl.core.errors import did_you_mean, similar

HOMES = {
    "mpe2": [""],
    "pettingzoo": ["butterfly", "classic", "sisl"],
    "magent2": ["environments"],
}  # package -> directories
MOST = 3


def suggestions(name: str, known: Iterable[str]) -> list[str]:
    """Return names similar to `name`, best match first, preferring names from the same package.

    Args:
        name: The unknown name.
        known: Names to consider besides the environments of the installed Gymnasium, PettingZoo, MPE2, MAgent2 and
            OpenSpiel.
    """
    by_core: dict[str, list[str]] = {}
    for other in dict.fromkeys([*known, *_modules(), *reversed(gym.registry), *_games()]):
        by_core.setdefault(_core(other), []).append(other)
    wanted = _core(name)
    cores = [wanted] if wanted in by_core else difflib.get_close_matches(wanted, by_core, n=MOST, cutoff=0.75)
    close = [other for core in cores for other in by_core[core] if other != name]
    close.sort(key=lambda other: -difflib.SequenceMatcher(None, name, other).ratio())
    package = name.partition(".")[0]
    return ([other for other in close if "." in name and other.startswith(f"{package}.")] or close)[:MOST]


def _core(name: str) -> str:
    """Strip package, version and punctuation: "CartPole-v1" and "fastmarl.cart_pole" both become "cartpole"."""
    last = re.split(r"[.:/]", name)[-1]
    return re.sub(r"[^a-z0-9]", "", re.sub(r"[-_]v\d+$", "", last.lower()))


def _modules() -> list[str]:
    """List the env modules of installed packages in HOMES without importing them."""
    found = []
    for package, folders in HOMES.items():
        spec = find_spec(package)
        for location in (spec and spec.submodule_search_locations) or ():
            for folder in folders:
                modules = pkgutil.iter_modules([str(Path(location, folder))])
                path = package if folder in ("", "environments") else f"{package}.{folder}"
                found += [f"{path}.{module.name}" for module in modules if re.search(r"_v\d+$", module.name)]
    return found


def _games() -> list[str]:
    """Return the names of all OpenSpiel games, or an empty list if OpenSpiel is not installed."""
    try:
        return [f"openspiel.{game}" for game in import_module("pyspiel").registered_names()]
    except ImportError:
        return []


def option_meant(make: Callable[..., Any], env_config: Mapping[str, Any]) -> str:
    """Return a hint for a misspelt option, or "" if the signature of `make` does not list the valid ones."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return ""
    takes_any = any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters.values())
    known = [name for name in parameters if name != "num_envs"]
    meant = [name for option in env_config if option not in known for name in similar(option, known)[:1]]
    return did_you_mean(meant) or ("" if takes_any or not known else f"; valid options are {', '.join(known)}")

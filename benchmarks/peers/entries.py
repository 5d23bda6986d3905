"""The samplers to measure, and the settings of their work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastmarl.core.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """One sampler, or half of the limit."""

    name: str
    """Name on the command line, in JSON, and of its virtual environment in a folder of such."""
    title: str
    """Name in tables."""
    module: str
    """Name of a module of peer_samplers."""
    shared_environment: str | None = None
    """Name of the entry whose virtual environment it uses, if it has none of its own."""


OURS = "fastmarl"
HALVES = (Entry("environment", "bare environments", "environment"), Entry("network", "bare network", "network"))
SAMPLERS = (
    Entry(OURS, "fastmarl", "fastmarl_runner"),
    Entry("fastmarl-rllib", "fastmarl.rllib, in RLlib", "fastmarl_rllib"),
    Entry("fastmarl-rllib-old", "fastmarl.rllib, old API stack", "fastmarl_rllib_old"),
    Entry("pufferlib", "PufferLib", "pufferlib"),
    Entry("supersuit", "SuperSuit and a PyTorch loop", "supersuit"),
    Entry("sample-factory", "Sample Factory", "sample_factory"),
    Entry("tianshou", "Tianshou", "tianshou"),
    Entry("torchrl", "TorchRL", "torchrl"),
    Entry("rllib", "RLlib MultiAgentEnvRunner", "rllib"),
    Entry("rllib-old", "RLlib RolloutWorker", "rllib_old", shared_environment="rllib"),
)
TITLES = {entry.name: entry.title for entry in (*HALVES, *SAMPLERS)}
OWN_PYTHON = (OURS, "fastmarl-rllib", "fastmarl-rllib-old", *(entry.name for entry in HALVES))


@dataclass(frozen=True)
class Setting:
    """The environment, the number of copies, and the number of worker processes (0: a single process)."""

    env: str
    num_envs: int
    num_workers: int

    def __str__(self) -> str:
        workers = f", {self.num_workers} workers" if self.num_workers else ""
        return f"{self.env}, {self.num_envs} envs{workers}"


ENV_KINDS = {"spread": "simple_spread_v3", "free": "an environment that costs nothing"}


def settings(env_kinds: Sequence[str], num_envs: Iterable[int], num_workers: Iterable[int]) -> list[Setting]:
    """Return all sensible combinations.

    Workers must share the envs equally, with at least two each, which double buffering needs, and are never used for
    environments without costs.
    """
    return [
        Setting(kind, envs, workers)
        for kind in env_kinds
        for workers in num_workers
        for envs in num_envs
        if not workers or (kind == "spread" and envs % workers == 0 and envs >= 2 * workers)
    ]


def samplers_named(names: Sequence[str] | None) -> tuple[Entry, ...]:
    """Return the samplers of these names, always including ours, to which all are compared.

    Raises:
        ConfigError: If a name is unknown.
    """
    known = [entry.name for entry in SAMPLERS]
    for name in names or ():
        if name not in known:
            raise ConfigError(f"there is no peer {name!r}; there are {', '.join(known)}")
    return tuple(entry for entry in SAMPLERS if not names or entry.name in (OURS, *names))


def pythons(chosen: Sequence[tuple[str, str]], folder: Path | None) -> dict[str, str]:
    """Return name of an entry -> the Python that runs it.

    Args:
        chosen: (name, path); these take precedence.
        folder: Folder of virtual environments named after entries. Other entries run in this Python.

    Raises:
        ConfigError: If a path or a folder does not exist, a path is not executable, or an entry is unknown.
    """
    own = dict(chosen)
    samplers_named(list(own))
    for name, path in own.items():
        if not Path(path).exists():
            raise ConfigError(f"--python {name}={path}: there is no such file")
        if not (Path(path).is_file() and os.access(path, os.X_OK)):
            raise ConfigError(f"--python {name}={path}: is not an executable program")
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--envs-folder {folder}: there is no such folder")

    def python_of(entry: Entry) -> str:
        for name in filter(None, (entry.name, entry.shared_environment)):
            if name in own:
                return own[name]
            inside = folder / name / "bin" / "python" if folder and name not in OWN_PYTHON else None
            if inside and inside.exists():
                return str(inside.absolute())
        return sys.executable

    return {entry.name: python_of(entry) for entry in (*HALVES, *SAMPLERS)}

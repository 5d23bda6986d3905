"""What is measured: the samplers and the settings of their work."""

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
    """On the command line and in JSON; also that of its virtual environment in a folder of such."""
    title: str
    """In tables."""
    module: str
    """Of peer_samplers."""
    shared_environment: str | None = None
    """Whose virtual environment it lives in, if it has none of its own."""


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
    """Which environment, how many, and in how many processes (0: one, without workers)."""

    env: str
    num_envs: int
    num_workers: int

    def __str__(self) -> str:
        workers = f", {self.num_workers} workers" if self.num_workers else ""
        return f"{self.env}, {self.num_envs} envs{workers}"


ENV_KINDS = {"spread": "simple_spread_v3", "free": "an environment that costs nothing"}


def settings(env_kinds: Sequence[str], num_envs: Iterable[int], num_workers: Iterable[int]) -> list[Setting]:
    """All combinations, but for those that make no sense: workers that can't share the envs equally (or have less than
    two each, which double buffering needs), and workers for environments that cost nothing.
    """
    return [
        Setting(kind, envs, workers)
        for kind in env_kinds
        for workers in num_workers
        for envs in num_envs
        if not workers or (kind == "spread" and envs % workers == 0 and envs >= 2 * workers)
    ]


def samplers_named(names: Sequence[str] | None) -> tuple[Entry, ...]:
    """Ours is always among them: all are compared with it.

    Raises:
        ConfigError: there is none of that name.
    """
    known = [entry.name for entry in SAMPLERS]
    for name in names or ():
        if name not in known:
            raise ConfigError(f"there is no peer {name!r}; there are {', '.join(known)}")
    return tuple(entry for entry in SAMPLERS if not names or entry.name in (OURS, *names))


def pythons(chosen: Sequence[tuple[str, str]], folder: Path | None) -> dict[str, str]:
    """Name of an entry -> the Python that runs it.

    Args:
        chosen: (name, path); these come first.
        folder: of virtual environments named as the entries are; then these. What is in neither runs in this Python.

    Raises:
        ConfigError: a path or a folder does not exist, a path can't be run, or there is no such entry.
    """
    own = dict(chosen)
    samplers_named(list(own))
    for name, path in own.items():
        if not Path(path).exists():
            raise ConfigError(f"--python {name}={path}: there is no such file")
        if not (Path(path).is_file() and os.access(path, os.X_OK)):
            raise ConfigError(f"--python {name}={path}: is no program that can be run")
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

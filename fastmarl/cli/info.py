"""`fastmarl info`."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata
from typing import Any

from fastmarl.cli.terminal import Terminal

CORE_PACKAGES = ("numpy", "numba", "gymnasium", "torch", "safetensors")
LISTED_PACKAGES = (*CORE_PACKAGES, "pettingzoo", "mpe2", "magent2", "rich", "matplotlib", "ray")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("info", help="versions, build, device, threads")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Show versions and what this machine offers."""
    import torch

    from fastmarl.native import _build, _dense

    checked, sanitized = "checked (bounds, None, initialisation)", "sanitized (addresses, undefined behaviour)"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rows = {
        **versions(),
        "build": checked if _build.CHECKED else sanitized if _build.SANITIZED else "release",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "lean": f"{_dense.BEST} (of {', '.join(_dense.VARIANTS)})",
        "threads": f"torch {torch.get_num_threads()}, cores {os.cpu_count()}",
        "env workers": f"{cores} with num_env_workers=0: the cores that this process may use",
    }
    for name, value in rows.items():
        terminal.show(f"{name:12} {value}")
    return 0


def versions() -> dict[str, str]:
    """Name -> installed version, or "not installed"."""

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "not installed"

    return {
        "fastmarl": version("fastmarl"),
        "python": platform.python_version(),
        **{package: version(package) for package in LISTED_PACKAGES},
    }

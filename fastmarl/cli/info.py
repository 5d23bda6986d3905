"""`fastmarl info`."""

from __future__ import annotations

import argparse
import os
from typing import Any

from fastmarl.cli.terminal import Terminal
from fastmarl.report.records import build, usable_cores, versions


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("info", help="versions, build, device, threads")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Show versions and what this machine offers."""
    import torch

    from fastmarl.core.native import _dense

    rows = {
        **versions(),
        "build": build(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "lean": f"{_dense.BEST} (of {', '.join(_dense.VARIANTS)})",
        "threads": f"torch {torch.get_num_threads()}, cores {os.cpu_count()}",
        "env workers": f"{usable_cores()} with num_env_workers=0: the cores that this process may use",
    }
    for name, value in rows.items():
        terminal.show(f"{name:12} {value}")
    return 0

"""What `fastmarl bench peers` is told, and the order of its work."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastmarl.bench.figure_files import read_figures
from fastmarl.bench.peers.entries import (
    ENV_KINDS,
    SAMPLERS,
    STANDARD_ENVS,
    STANDARD_WORKERS,
    pythons,
    samplers_named,
    settings,
)
from fastmarl.bench.peers.measure import Pace, measure_setting, merged
from fastmarl.bench.peers.report import LEGEND, draw, markdown, rich_table, tables
from fastmarl.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """The options; `positive` reads an int of at least 1."""
    pace = Pace()
    names = ", ".join(entry.name for entry in SAMPLERS)
    parser.add_argument("--peers", nargs="+", metavar="NAME", help=f"beside fastmarl; default: all of {names}")
    parser.add_argument(
        "--python",
        action="append",
        type=_assignment,
        default=[],
        metavar="NAME=PATH",
        help="the Python that has a peer",
    )
    parser.add_argument("--envs-folder", type=Path, metavar="FOLDER", help="of virtual environments, by name of a peer")
    parser.add_argument("--env", nargs="+", choices=[*ENV_KINDS], default=[*ENV_KINDS], help="default: both")
    parser.add_argument("--envs", nargs="+", type=positive, default=[*STANDARD_ENVS], help="default %(default)s")
    parser.add_argument(
        "--workers", nargs="+", type=_natural, default=[*STANDARD_WORKERS], help="0: one process (default %(default)s)"
    )
    parser.add_argument("--rounds", type=positive, default=pace.rounds, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=pace.seconds, help="of each turn (default %(default)s)")
    parser.add_argument(
        "--start-timeout", type=float, default=pace.start_timeout, metavar="S", help="default %(default)s"
    )
    parser.add_argument(
        "--turn-timeout", type=float, default=pace.turn_timeout, metavar="S", help="default %(default)s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures; settings that it has stay there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write tables of all settings in the JSON")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw them")


def run(args: argparse.Namespace, is_terminal: bool, save: Callable[[list[dict[str, Any]]], None]) -> None:
    """Measure, show tables, write Markdown and picture; for `save` see `measure`."""
    import psutil  # noqa: F401  before the work, not after it
    from rich.console import Console

    if args.plot:
        import matplotlib  # noqa: F401
    console = Console(width=None if is_terminal else 128)
    with console.status("measuring ...") as status:
        settings = measure(args, status.update, save)
    console.print(LEGEND)
    for title, rows in tables(settings):
        console.print(f"\n{title}", rich_table(rows), sep="\n")
    if args.markdown:
        args.markdown.parent.mkdir(parents=True, exist_ok=True)
        args.markdown.write_text(markdown(settings))
    if args.plot:
        draw(settings, args.plot)


def measure(
    args: argparse.Namespace, progress: Callable[[str], None], save: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Measure what the arguments ask for; returns it together with what stood in the JSON file before.

    Args:
        progress: is told what is being measured.
        save: is given all figures so far whenever a setting is measured.

    Raises:
        ConfigError: a name, a path or a combination that does not exist, or a file that is no such JSON.
    """
    samplers = samplers_named(args.peers)
    python_of = pythons(args.python, args.envs_folder)
    measured = read_figures(args.json, "settings") or []
    wanted = settings(args.env, args.envs, args.workers)
    if not wanted:
        raise ConfigError(
            f"--envs {args.envs} --workers {args.workers}: workers need simple_spread, and at least two envs each, "
            "as many for all"
        )
    pace = Pace(
        rounds=args.rounds, seconds=args.seconds, start_timeout=args.start_timeout, turn_timeout=args.turn_timeout
    )
    for setting in wanted:
        measured = merged(measured, [measure_setting(setting, samplers, python_of, pace, progress)])
        save(measured)
    return measured


def _assignment(text: str) -> tuple[str, str]:
    name, sign, path = text.partition("=")
    if not (name and sign and path):
        raise argparse.ArgumentTypeError(f"must be NAME=PATH, got {text}")
    return name, path


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {number}")
    return number

"""`fastmarl bench peers`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
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
from fastmarl.bench.peers.report import LEGEND, draw, markdown, tables
from fastmarl.bench.tables import Table
from fastmarl.cli.arguments import json_file, markdown_file, natural, picture, positive, seconds
from fastmarl.cli.figures import save
from fastmarl.cli.terminal import Terminal
from fastmarl.errors import ConfigError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("peers", help="other samplers and ours on the same work, in turn")
    _add_arguments(parser)
    parser.set_defaults(run=run, parser=parser)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
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
        "--workers", nargs="+", type=natural, default=[*STANDARD_WORKERS], help="0: one process (default %(default)s)"
    )
    parser.add_argument("--rounds", type=positive, default=pace.rounds, help="default %(default)s")
    parser.add_argument("--seconds", type=seconds, default=pace.seconds, help="of each turn (default %(default)s)")
    parser.add_argument(
        "--start-timeout", type=seconds, default=pace.start_timeout, metavar="S", help="default %(default)s"
    )
    parser.add_argument(
        "--turn-timeout", type=seconds, default=pace.turn_timeout, metavar="S", help="default %(default)s"
    )
    parser.add_argument(
        "--json", type=json_file, metavar="FILE", help="write the figures; settings that it has stay there"
    )
    parser.add_argument(
        "--markdown", type=markdown_file, metavar="FILE", help="write tables of all settings in the JSON"
    )
    parser.add_argument("--plot", type=picture, metavar="PNG", help="draw them")


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Measure, save, show tables, write Markdown and picture; after Ctrl-C of the settings measured until then."""
    import psutil  # noqa: F401  before the work, not after it

    if args.plot:
        import matplotlib  # noqa: F401
    measured: list[dict[str, Any]] = []
    try:
        with terminal.status("measuring ...") as progress:
            for measured in measure(args, progress):
                save(args.json, {"settings": measured})
    finally:
        if measured:
            _report(args, measured, terminal)
    return 0


def _report(args: argparse.Namespace, measured: list[dict[str, Any]], terminal: Terminal) -> None:
    terminal.show(LEGEND)
    for title, (heading, *rows) in tables(measured):
        terminal.show(Table(f"\n{title}", heading, rows))
    if args.markdown:
        args.markdown.write_text(markdown(measured))
    if args.plot:
        draw(measured, args.plot)


def measure(args: argparse.Namespace, progress: Callable[[str], None]) -> Iterator[list[dict[str, Any]]]:
    """Measure what the arguments ask for.

    Args:
        args: see `_add_arguments`.
        progress: is told what is being measured.

    Yields:
        All figures so far whenever a setting is measured, together with what stood in the JSON file before.

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
        yield measured


def _assignment(text: str) -> tuple[str, str]:
    name, sign, path = text.partition("=")
    if not (name and sign and path):
        raise argparse.ArgumentTypeError(f"must be NAME=PATH, got {text}")
    return name, path

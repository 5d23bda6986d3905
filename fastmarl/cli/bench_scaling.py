"""`fastmarl bench scaling`."""

from __future__ import annotations

import argparse
from typing import Any

from fastmarl.bench.figure_files import read_figures
from fastmarl.cli.arguments import json_file, picture, positive, seconds
from fastmarl.cli.figures import save
from fastmarl.cli.terminal import Terminal
from fastmarl.errors import ConfigError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("scaling", help="speed and efficiency over agents, envs, network size, workers")
    parser.add_argument("--series", nargs="+", metavar="NAME", help="some of agents, envs, network, workers")
    parser.add_argument("--rounds", type=positive, default=3, help="default %(default)s")
    parser.add_argument("--seconds", type=seconds, default=0.2, help="of each measurement (default %(default)s)")
    parser.add_argument(
        "--json", type=json_file, metavar="FILE", help="write the figures; series that it has stay there"
    )
    parser.add_argument("--plot", type=picture, metavar="PNG", help="draw them")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Measure series by series; each is shown and saved at once.

    After Ctrl-C the sizes of a series that were measured are shown; a file keeps whole series only.

    Raises:
        ConfigError: there is no such series.
    """
    from fastmarl.bench import scaling

    if args.plot:
        import matplotlib  # noqa: F401  before the work, not after it
    names = args.series or [*scaling.SERIES]
    for name in names:
        if name not in scaling.SERIES:
            raise ConfigError(f"there is no series {name!r}; there are {', '.join(scaling.SERIES)}")
    figures = read_figures(args.json, "series") or {}
    for name in names:
        figures[name] = _measure(name, args, terminal)
        figures = {name: figures[name] for name in scaling.SERIES if name in figures}
        save(args.json, {"series": figures})
    if args.plot:
        scaling.draw(figures, args.plot)
    return 0


def _measure(name: str, args: argparse.Namespace, terminal: Terminal) -> list[dict[str, Any]]:
    from fastmarl.bench import scaling

    rows: list[dict[str, Any]] = []
    try:
        with terminal.status(f"measuring {name} ...") as say:
            rows.extend(scaling.measure_series(name, rounds=args.rounds, seconds=args.seconds, progress=say))
    finally:
        if rows:
            terminal.show(scaling.table_of(name, rows))
    return rows

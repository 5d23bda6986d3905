"""`fastmarl bench scaling`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from fastmarl.bench.scaling_report import TITLES, draw, order, tables
from fastmarl.cli.bench import Benchmark, add_pace
from fastmarl.core.errors import ConfigError
from fastmarl.report.records import Row


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--series", nargs="+", metavar="NAME", help=f"some of {', '.join(TITLES)}")
    add_pace(parser, rounds=3, duration=0.2)


def _measure(args: argparse.Namespace, progress: Callable[[str], None]) -> Iterator[tuple[str, Row]]:
    from fastmarl.bench.scaling import measure_series

    names = args.series or [*TITLES]
    for name in names:
        if name not in TITLES:
            raise ConfigError(f"there is no series {name!r}; there are {', '.join(TITLES)}")
    for name in names:
        for row in measure_series(name, rounds=args.rounds, seconds=args.seconds, progress=progress):
            yield "series", row


SCALING = Benchmark(
    name="scaling",
    help="speed and efficiency over agents, envs, network size, workers",
    add_arguments=_add_arguments,
    measure=_measure,
    tables=tables,
    draw=draw,
    orders={"series": order},
)

"""The command `python -m benchmarks.peers`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.peers.entries import ENV_KINDS, SAMPLERS, pythons, samplers_named, settings
from benchmarks.peers.measure import Pace, measure_setting
from benchmarks.peers.report import LEGEND, draw, order, setups, tables
from fastmarl.cli.arguments import natural, positive, seconds
from fastmarl.cli.bench import Benchmark, add_pace
from fastmarl.core.errors import ConfigError
from fastmarl.report.records import Row


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    pace = Pace()
    names = ", ".join(entry.name for entry in SAMPLERS)
    parser.add_argument("--peers", nargs="+", metavar="NAME", help=f"compared with fastmarl; default: {names}")
    parser.add_argument(
        "--python",
        action="append",
        type=_assignment,
        default=[],
        metavar="NAME=PATH",
        help="the Python in which a peer is installed",
    )
    parser.add_argument("--envs-folder", type=Path, metavar="FOLDER", help="virtual environments, named after peers")
    parser.add_argument("--env", nargs="+", choices=[*ENV_KINDS], default=[*ENV_KINDS], help="default: both")
    parser.add_argument("--envs", nargs="+", type=positive, default=[1, 8, 32], help="default %(default)s")
    parser.add_argument(
        "--workers", nargs="+", type=natural, default=[0, 2], help="0: one process (default %(default)s)"
    )
    add_pace(parser, rounds=pace.rounds, duration=pace.seconds)
    for name in ("start_timeout", "turn_timeout"):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=seconds, default=getattr(pace, name), metavar="S", help="default %(default)s")


def _measure(args: argparse.Namespace, progress: Callable[[str], None]) -> Iterator[tuple[str, Row]]:
    """Yield the results of one setting after another."""
    import psutil  # noqa: F401  fails before the work, not after it

    samplers = samplers_named(args.peers)
    python_of = pythons(args.python, args.envs_folder)
    wanted = settings(args.env, args.envs, args.workers)
    if not wanted:
        raise ConfigError(
            f"--envs {args.envs} --workers {args.workers}: workers need simple_spread and "
            "equal shares of the envs, at least two each"
        )
    pace = Pace(
        rounds=args.rounds, seconds=args.seconds, start_timeout=args.start_timeout, turn_timeout=args.turn_timeout
    )
    for setting in wanted:
        yield "settings", measure_setting(setting, samplers, python_of, pace, progress)


def _assignment(text: str) -> tuple[str, str]:
    name, sign, path = text.partition("=")
    if not (name and sign and path):
        raise argparse.ArgumentTypeError(f"must be NAME=PATH, got {text}")
    return name, path


PEERS = Benchmark(
    name="peers",
    help="measure other samplers and ours on the same work, in turn",
    add_arguments=_add_arguments,
    measure=_measure,
    tables=tables,
    draw=draw,
    above=LEGEND,
    below=setups,
    orders={"settings": order},
)

if __name__ == "__main__":
    sys.exit(PEERS.main())

"""The command `python -m benchmarks.rllib`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

from benchmarks.rllib.report import draw, tables
from fastmarl.cli.arguments import positive
from fastmarl.cli.bench import Benchmark
from fastmarl.report.records import Row


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="replace the standard cases; a wrong name lists all")
    parser.add_argument("--rounds", type=positive, default=5, help="default %(default)s")
    parser.add_argument("--quick", action="store_true", help="one round; two small cases if none are named")
    parser.add_argument(
        "--sampler", choices=("exact", "fast"), default="exact", help="option of the runner (default %(default)s)"
    )
    parser.add_argument("--ray", action="store_true", help="also with Ray: the trip from an actor, PPO iterations")


def _measure(args: argparse.Namespace, progress: Callable[[str], None]) -> Iterator[tuple[str, Row]]:
    """Yield the results of one section after another."""
    from benchmarks.rllib.cases import CASES, QUICK, STANDARD, check_names
    from benchmarks.rllib.extras import local_ray, measure_growth, measure_ppo, measure_transfer, measure_trip
    from benchmarks.rllib.measure import measure_case
    from fastmarl.rllib.runner import MultiAgentEnvRunner

    names = args.cases or (QUICK if args.quick else STANDARD)
    check_names(names)
    rounds = 1 if args.quick else args.rounds
    ours = MultiAgentEnvRunner.options(sampler=args.sampler) if args.sampler != "exact" else MultiAgentEnvRunner
    for name in (name for name in names if name in CASES):
        progress(f"measuring {name} ...")
        yield "cases", asdict(measure_case(name, rounds=rounds, ours=ours))
    progress("measuring growth, transfer, trip, PPO ...")
    if "growth" in names:
        yield from (("growth", row) for row in measure_growth(rounds=min(3, rounds), ours=ours))
    if "transfer" in names:
        yield from (("transfer", row) for row in measure_transfer(rounds=rounds, ours=ours))
    if args.ray:
        with local_ray():
            yield from (("trip", row) for row in measure_trip(ours=ours))
            yield from (("ppo", row) for row in measure_ppo(iterations=min(3, rounds), ours=ours))


RLLIB = Benchmark(
    name="rllib",
    help="fastmarl.rllib's runner against RLlib's, after a check that they are equal",
    add_arguments=_add_arguments,
    measure=_measure,
    tables=tables,
    draw=draw,
)

if __name__ == "__main__":
    sys.exit(RLLIB.main())

"""`fastmarl bench rllib`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fastmarl.cli.arguments import json_file, picture, positive
from fastmarl.cli.figures import save
from fastmarl.cli.terminal import Terminal

Report = dict[str, list[dict[str, Any]]]


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "rllib", help="fastmarl.rllib's runner against RLlib's, after a check that they are equal"
    )
    parser.add_argument(
        "--cases", nargs="+", metavar="NAME", help="instead of the standard ones; a wrong name lists all"
    )
    parser.add_argument("--rounds", type=positive, default=5, help="default %(default)s")
    parser.add_argument("--quick", action="store_true", help="one round; two small cases if none are named")
    parser.add_argument(
        "--sampler", choices=("exact", "fast"), default="exact", help="option of the runner (default %(default)s)"
    )
    parser.add_argument("--ray", action="store_true", help="with Ray, too: the trip from an actor, PPO iterations")
    parser.add_argument("--json", type=json_file, metavar="FILE", help="write the figures")
    parser.add_argument("--plot", type=picture, metavar="PNG", help="draw ratios and growth")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Measure, then show, draw and save; after Ctrl-C what was measured until then."""
    from fastmarl.bench.rllib.cases import QUICK, STANDARD, check_names
    from fastmarl.bench.rllib.report import draw, table_of

    if args.plot:
        import matplotlib  # noqa: F401  before the work, not after it
    names = args.cases or (QUICK if args.quick else STANDARD)
    check_names(names)
    report: Report = {"cases": []}
    try:
        _measure(args, names, report, terminal)
    finally:
        for section, figures in report.items():
            if figures:
                terminal.show(table_of(section, figures))
        if any(report.values()):
            if args.plot:
                draw(report["cases"], report.get("growth", []), args.plot)
            save(args.json, report)
    return 0


def _measure(args: argparse.Namespace, names: Sequence[str], report: Report, terminal: Terminal) -> None:
    """Add to `report` section by section, case by case."""
    from fastmarl.bench.rllib.cases import CASES
    from fastmarl.bench.rllib.extras import local_ray, measure_growth, measure_ppo, measure_transfer, measure_trip
    from fastmarl.bench.rllib.measure import measure_case
    from fastmarl.rllib.runner import MultiAgentEnvRunner

    rounds = 1 if args.quick else args.rounds
    ours = MultiAgentEnvRunner.options(sampler=args.sampler) if args.sampler != "exact" else MultiAgentEnvRunner
    for name in (name for name in names if name in CASES):
        with terminal.status(f"measuring {name} ..."):
            report["cases"].append(measure_case(name, rounds=rounds, ours=ours).as_dict())
    with terminal.status("measuring growth, transfer, trip, PPO ..."):
        if "growth" in names:
            report["growth"] = [row.as_dict() for row in measure_growth(rounds=min(3, rounds), ours=ours)]
        if "transfer" in names:
            report["transfer"] = [row.as_dict() for row in measure_transfer(rounds=rounds, ours=ours)]
        if args.ray:
            with local_ray():
                report["trip"] = [row.as_dict() for row in measure_trip(ours=ours)]
                report["ppo"] = [row.as_dict() for row in measure_ppo(iterations=min(3, rounds), ours=ours)]

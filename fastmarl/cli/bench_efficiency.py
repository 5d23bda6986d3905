"""`fastmarl bench efficiency`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from fastmarl.bench.efficiency_report import draw, tables
from fastmarl.cli.arguments import ENV_HELP, add_env_arguments, runner_config
from fastmarl.cli.bench import Benchmark, add_pace
from fastmarl.report.records import Row


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_env_arguments(parser, num_envs=8)
    parser.add_argument("--env", metavar="NAME", help=ENV_HELP)
    add_pace(parser, rounds=5, duration=1.0)


def _measure(args: argparse.Namespace, progress: Callable[[str], None]) -> Iterator[tuple[str, Row]]:
    from fastmarl.bench.efficiency import measure_efficiency
    from fastmarl.bench.efficiency_table import standard_configs

    options = {"model_config": {"fcnet_hiddens": args.hiddens}, "device": args.device, "seed": args.seed}
    configs = [(args.env, runner_config(args))] if args.env else standard_configs(**options)
    for name, config in configs:
        progress(f"measuring {name}, {config.num_envs_per_env_runner} envs ...")
        result = measure_efficiency(config, rounds=args.rounds, seconds=args.seconds)
        yield "figures", {"environment": name, **result.as_dict()}


EFFICIENCY = Benchmark(
    name="efficiency",
    help="the runner against a bare loop; without --env: a standard table",
    add_arguments=_add_arguments,
    measure=_measure,
    tables=tables,
    draw=draw,
)

"""`fastmarl bench efficiency`."""

from __future__ import annotations

import argparse
from typing import Any

from fastmarl.bench.tables import Table
from fastmarl.cli.arguments import ENV_HELP, add_env_arguments, json_file, positive, runner_config, seconds
from fastmarl.cli.figures import save
from fastmarl.cli.terminal import Terminal

HEADING = (
    "environment",
    "agents",
    "envs",
    "env",
    "network",
    "bare\nloop",
    "runner",
    "relative\nspeed",
    "own",
    "agent\nsteps/s",
)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("efficiency", help="the runner against a bare loop; without --env: a standard table")
    add_env_arguments(parser, num_envs=8)
    parser.add_argument("--env", metavar="NAME", help=ENV_HELP)
    parser.add_argument("--rounds", type=positive, default=5, help="default %(default)s")
    parser.add_argument("--seconds", type=seconds, default=1.0, help="of each measurement (default %(default)s)")
    parser.add_argument("--json", type=json_file, metavar="FILE", help="write the figures")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Measure, then show and save; after Ctrl-C what was measured until then."""
    from fastmarl.bench.efficiency import measure_efficiency
    from fastmarl.bench.efficiency_table import standard_configs

    options = {"model_config": {"fcnet_hiddens": args.hiddens}, "device": args.device, "seed": args.seed}
    configs = [(args.env, runner_config(args))] if args.env else standard_configs(**options)
    measured: list[tuple[str, Any]] = []
    try:
        for name, config in configs:
            with terminal.status(f"measuring {name}, {config.num_envs_per_env_runner} envs ..."):
                result = measure_efficiency(config, rounds=args.rounds, seconds=args.seconds)
            measured.append((name, result))
    finally:
        if measured:
            terminal.show(_table(measured, args.rounds))
            save(args.json, {"figures": [{"environment": name, **result.as_dict()} for name, result in measured]})
    return 0


def _table(measured: list[tuple[str, Any]], rounds: int) -> Table:
    title = (
        f"µs per agent step, medians of {rounds} rounds, one torch thread; own: the bare loop draws actions as we do"
    )
    return Table(title, HEADING, [(name, *_cells(result)) for name, result in measured])


def _cells(result: Any) -> list[str]:
    times = (result.env_us, result.network_us, result.limit_us, result.runner_us)
    return [
        f"{result.agents:.1f}",
        str(result.envs),
        *(f"{us:.2f}" for us in times),
        f"{result.efficiency:.3f}",
        f"{result.own_efficiency:.3f}",
        f"{result.agent_steps_per_second:,.0f}",
    ]

"""The `fastmarl` command. Larger subcommands have their own modules; no other package prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from fastmarl.cli import bench, play, replay, rllib_check, sample, train
from fastmarl.cli.arguments import (
    ENV_HELP,
    INTERRUPTED,
    Parser,
    add_episode_rules,
    env_of,
    json_object,
    search_current_folder,
)
from fastmarl.cli.signals import EndSignals
from fastmarl.cli.terminal import Terminal
from fastmarl.core import __version__
from fastmarl.core.processes.cores import usable_cores
from fastmarl.report.records import build, versions


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `Parser.run()` for exit codes and exceptions."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    given = sys.argv[1:] if argv is None else list(argv)
    with EndSignals() as signals:
        if given[:1] != ["train"]:
            signals.release()
        try:
            return _parser(given, signals).run(given)
        except KeyboardInterrupt:  # the second Ctrl-C, during the import of an algorithm
            return INTERRUPTED


def _parser(argv: Sequence[str], signals: EndSignals) -> Parser:
    parser = Parser(prog="fastmarl", description="Multi-agent experience for reinforcement learning, sampled fast.")
    parser.add_argument("--version", action="version", version=f"fastmarl {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    sample.add_parser(commands)
    train.add_parser(commands, argv, signals)
    play.add_evaluate(commands)
    play.add_tournament(commands)
    replay.add_parser(commands)
    benchmarks = commands.add_parser("bench", help="measure").add_subparsers(
        title="benchmarks", metavar="BENCHMARK", required=True
    )
    for benchmark in bench.BENCHMARKS:
        benchmark.add_parser(benchmarks)
    _add_check_env(commands)
    rllib_check.add_parser(commands)
    commands.add_parser("info", help="versions, build, device, threads").set_defaults(run=_info)
    return parser


def _add_check_env(commands: Any) -> None:
    parser = commands.add_parser("check-env", help="check an environment; exit code 1 if it has problems")
    parser.add_argument("env", metavar="NAME", help=ENV_HELP)
    parser.add_argument("--env-config", type=json_object, default={}, metavar="JSON", help="options of the env")
    add_episode_rules(parser)
    parser.set_defaults(run=_check_env)


def _check_env(args: argparse.Namespace, terminal: Terminal) -> int:
    """Show the report of `check_env()`."""
    from fastmarl.testing.check import check_env

    search_current_folder(args.env)
    env = env_of(args.env, args.max_steps)
    report = check_env(env, args.env_config, respawn=args.respawn, late_rewards=args.late_rewards)
    terminal.show(str(report))
    return 0 if report.ok else 1


def _info(args: argparse.Namespace, terminal: Terminal) -> int:
    """Show versions, and the device, kernels and cores of this machine."""
    import torch

    from fastmarl.core.native import _dense

    rows = {
        **versions(),
        "build": build(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "native": f"{_dense.BEST} (of {', '.join(_dense.VARIANTS)})",
        "threads": f"torch {torch.get_num_threads()}, cores {os.cpu_count()}",
        "env workers": f"{usable_cores()} with num_env_workers=0: the cores that this process may use",
    }
    for name, value in rows.items():
        terminal.show(f"{name:12} {value}")
    return 0

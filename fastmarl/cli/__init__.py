"""The `fastmarl` command, one module for each subcommand. Nothing else in the package prints."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fastmarl.cli import bench, check_env, info, play, replay, rllib_check, sample, train
from fastmarl.cli.arguments import Parser
from fastmarl.core.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns and raises as `Parser.run()` does."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    return _parser().run(argv)


def _parser() -> Parser:
    parser = Parser(prog="fastmarl", description="Multi-agent experience for reinforcement learning, sampled fast.")
    parser.add_argument("--version", action="version", version=f"fastmarl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True)
    sample.add_parser(commands)
    train.add_parser(commands)
    play.add_evaluate(commands)
    play.add_tournament(commands)
    replay.add_parser(commands)
    benchmarks = commands.add_parser("bench", help="measure").add_subparsers(title="benchmarks", required=True)
    for benchmark in bench.BENCHMARKS:
        benchmark.add_parser(benchmarks)
    check_env.add_parser(commands)
    rllib_check.add_parser(commands)
    info.add_parser(commands)
    return parser

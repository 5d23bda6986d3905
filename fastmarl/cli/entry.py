"""Reads the arguments, runs a command, and says in one line what went wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fastmarl.cli import check_env, evaluate, info, replay, rllib_check, sample, tournament, train
from fastmarl.cli.arguments import Parser
from fastmarl.cli.bench_efficiency import EFFICIENCY
from fastmarl.cli.bench_peers import PEERS
from fastmarl.cli.bench_rllib import RLLIB
from fastmarl.cli.bench_scaling import SCALING
from fastmarl.cli.terminal import open_terminal
from fastmarl.core.envs.packages import NEEDED, how_to_install
from fastmarl.core.errors import FastmarlError
from fastmarl.core.exits import exits_as_errors
from fastmarl.core.version import __version__

INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit code: 0; 1 for an error that was reported; 130 after Ctrl-C, when what was measured has been shown. The
        checks have codes of their own.

    Raises:
        SystemExit: wrong arguments (2), or --help and --version (0).
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        with exits_as_errors():
            return args.run(args, open_terminal())
    except FastmarlError as error:
        print(f"fastmarl: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in NEEDED:
            raise
        print(f"fastmarl: this needs {module}: {how_to_install(module)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("fastmarl: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 1


def _parser() -> Parser:
    parser = Parser(prog="fastmarl", description="Multi-agent experience for reinforcement learning, sampled fast.")
    parser.add_argument("--version", action="version", version=f"fastmarl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True)
    sample.add_parser(commands)
    train.add_parser(commands)
    evaluate.add_parser(commands)
    tournament.add_parser(commands)
    replay.add_parser(commands)
    benchmarks = commands.add_parser("bench", help="measure").add_subparsers(title="benchmarks", required=True)
    for bench in (EFFICIENCY, RLLIB, SCALING, PEERS):
        bench.add_parser(benchmarks)
    check_env.add_parser(commands)
    rllib_check.add_parser(commands)
    info.add_parser(commands)
    return parser

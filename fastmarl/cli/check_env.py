"""`fastmarl check-env`."""

from __future__ import annotations

import argparse
from typing import Any

from fastmarl.cli.arguments import ENV_HELP, json_object, search_current_folder
from fastmarl.cli.terminal import Terminal


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("check-env", help="check an environment; exit code 1 if something is wrong with it")
    parser.add_argument("env", metavar="NAME", help=ENV_HELP)
    parser.add_argument("--config", type=json_object, default={}, metavar="JSON", help="env_config")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Show the report."""
    from fastmarl.testing.check import check_env

    search_current_folder(args.env)
    report = check_env(args.env, args.config)
    terminal.show(str(report))
    return 0 if report.ok else 1

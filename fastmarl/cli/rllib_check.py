"""`fastmarl rllib-check`: check whether the drop-in replacement accelerates a config."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from fastmarl.cli.arguments import in_one_line, json_file, search_current_folder
from fastmarl.cli.terminal import Terminal
from fastmarl.core.errors import ConfigError, FastmarlError
from fastmarl.report.records import RecordFile

BAD_INPUT = 2


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "rllib-check",
        help="say whether fastmarl.rllib's runner samples with an RLlib config, or what to change; exit code 0 if so, "
        "1 if not, 2 for a config that can't be checked",
    )
    parser.add_argument("config", metavar="MODULE:CONFIG", help="an AlgorithmConfig, or a function without arguments "
                        "that returns one, such as my_package.my_module:config")  # fmt: skip
    parser.add_argument("--json", type=json_file, metavar="FILE", help="add a record of this check; one JSON object a "
                        "line")  # fmt: skip
    parser.set_defaults(run=run, error_code=BAD_INPUT)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Check the config and show the report."""
    from fastmarl.rllib.check import check_config  # first, so that a missing Ray is not blamed on the user module

    try:
        file = RecordFile(args.json, "rllib-check")
        config = _config_at(args.config)
        with terminal.status(f"building an env runner of {args.config} ..."):
            report = check_config(config)
    except FastmarlError as error:
        raise ConfigError(f"{args.config}: {error}") from error
    terminal.show(str(report))
    file.write({"config": args.config, **report.as_dict()}, is_final=True)
    return 0 if report.is_accelerated else 1


def _config_at(name: str) -> Any:
    """Import the object "package.module:name"; if it is a function, call it and return the result.

    Raises:
        ConfigError: If the object does not exist.
    """
    from fastmarl.training.runner_options import object_named

    search_current_folder(name)
    found = object_named(name, "MODULE:CONFIG")
    return _called(found, name.partition(":")[2]) if inspect.isroutine(found) else found


def _called(function: Any, name: str) -> Any:
    """Call a function without arguments; return its result."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(f"{name} must be callable without arguments: {error}") from error
    try:
        return function()
    except Exception as error:
        raise ConfigError(f"{name}() failed: {type(error).__name__}: {in_one_line(error):.300}") from error

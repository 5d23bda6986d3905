"""What the commands' arguments may be; all that is wrong is found before the work begins."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from fastmarl.cli.terminal import open_terminal
from fastmarl.core.envs.packages import NEEDED, how_to_install
from fastmarl.core.errors import FastmarlError
from fastmarl.core.exits import exits_as_errors
from fastmarl.report.records import is_stream

INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it

ENV_HELP = (
    "such as mpe2.simple_spread_v3, fastmarl.cart_pole (compiled), openspiel.kuhn_poker, CartPole-v1, or "
    "my_package.my_module:MyEnv"
)


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def run(self, argv: Sequence[str] | None = None) -> int:
        """Run the command that the arguments ask for, and say in one line what went wrong.

        Returns:
            The exit code: 0; for an error that was reported 1, unless the command has an `error_code` of its own; 130
            after Ctrl-C, when what was measured has been shown. The checks have codes of their own.

        Raises:
            SystemExit: wrong arguments (2), or --help and --version (0).
        """
        args = self.parse_args(argv)
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
        return getattr(args, "error_code", 1)


def integer(least: int, text: str) -> int:
    """One of at least `least`."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be an integer of at least {least}, got {text!r}")
    return number


positive = partial(integer, 1)
natural = partial(integer, 0)


def seconds(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return number


def json_object(text: str) -> dict:
    """A dict, from JSON."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object, got no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value


def output_file(suffixes: tuple[str, ...], text: str) -> Path:
    """A file that can be written, or a stream. Folders on its way are made."""
    path = Path(text)
    if is_stream(path):
        return path
    if path.suffix.lower() not in suffixes:
        raise argparse.ArgumentTypeError(f"must end in {' or '.join(suffixes)}, got {text!r}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"can't write {str(path)!r}: {error.strerror or error}") from error
    return path


def output_folder(text: str) -> Path:
    """A folder, which is made if needed."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"can't be a folder: {text!r}: {error.strerror or error}") from error
    return path


picture_file = partial(output_file, (".png", ".pdf", ".svg"))
json_file = partial(output_file, (".json", ".jsonl"))
markdown_file = partial(output_file, (".md",))


def add_env_arguments(parser: argparse.ArgumentParser, num_envs: int, *, needs_env: bool = True) -> None:
    """Which environments, how many, where modules run, and the seed."""
    parser.add_argument("--env", required=needs_env, metavar="NAME", help=ENV_HELP)
    parser.add_argument("--config", "--env-config", type=json_object, default={}, metavar="JSON", help="env_config")
    parser.add_argument("--num-envs", type=positive, default=num_envs, help="default %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or auto (default %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="default %(default)s")


def add_hiddens(parser: argparse.ArgumentParser) -> None:
    """--hiddens"""
    parser.add_argument("--hiddens", type=positive, nargs="+", default=[64, 64], help="layers (default 64 64)")


def runner_config(args: argparse.Namespace, **options: Any) -> Any:
    """The EnvRunnerConfig that the arguments ask for."""
    from fastmarl.core.config import EnvRunnerConfig

    search_current_folder(args.env)
    return EnvRunnerConfig(
        env=args.env,
        env_config=args.config,
        num_envs_per_env_runner=args.num_envs,
        model_config={"fcnet_hiddens": args.hiddens},
        device=args.device,
        seed=args.seed,
        **options,
    )


def search_current_folder(env_name: str) -> None:
    """As with `python -m`, the module of "package.module:Name" may lie in the current folder, for workers, too."""
    if ":" in env_name:
        sys.path.insert(0, os.getcwd())

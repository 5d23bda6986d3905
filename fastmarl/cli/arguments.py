"""Argument types, shared options and error messages of the commands."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from fastmarl.cli.terminal import open_terminal
from fastmarl.core.errors import FastmarlError, did_you_mean, similar
from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.core.errors.packages import how_to_install
from fastmarl.report.records import is_stream

TRACEBACK = "FASTMARL_TRACEBACK"  # environment variable
INTERRUPTED = 130  # 128 + SIGINT, as in shells
MAX_STEPS = 10_000  # per episode played without another limit: greedy play may never end
LATE_REWARDS = ("error", "accumulate", "drop")

ENV_HELP = (
    "such as mpe2.simple_spread_v3, fastmarl.cart_pole (compiled), openspiel.kuhn_poker, CartPole-v1, or "
    "my_package.my_module:MyEnv"
)


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors on a single line and suggests similar names."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like the base class, but report unknown options first, since a missing one may just be misspelt."""
        given = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            for text in given[: given.index("--")] if "--" in given else given:
                self._check_option(text)
        return super().parse_known_args(given, namespace)

    def _check_option(self, text: str) -> None:
        name = text.partition("=")[0]
        known = self._option_string_actions
        if not text.startswith("--") or " " in name or any(option.startswith(name) for option in known):
            return
        close = difflib.get_close_matches(name, known, 1, cutoff=0.5)
        self.error(f"unknown option {name}{did_you_mean(close)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            hint = did_you_mean(similar(str(value), known)) or f"; choose from {', '.join(known)}"
            raise argparse.ArgumentError(action, f"invalid choice {value!r}{hint}")

    def run(self, argv: Sequence[str] | None = None) -> int:
        """Run the command named in the arguments, and report errors on a single line.

        Returns:
            The exit code: 0 for success; 1, or the `error_code` of the command, after a reported error; 130 after
            Ctrl-C, once available results have been shown. Commands that check something use additional codes.

        Raises:
            SystemExit: For wrong arguments (2), and for --help and --version (0).
        """
        args = self.parse_args(argv)
        try:
            with exits_as_errors():
                return args.run(args, open_terminal())
        except FastmarlError as error:
            print(f"fastmarl: {in_one_line(error)}", file=sys.stderr)
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            print(f"fastmarl: this command needs {module}: {how_to_install(module)}", file=sys.stderr)
        except KeyboardInterrupt:
            print("fastmarl: interrupted", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:  # mostly from user code
            if os.environ.get(TRACEBACK):
                raise
            print(f"fastmarl: {_where(error)}; set {TRACEBACK}=1 for the full traceback", file=sys.stderr)
        return getattr(args, "error_code", 1)


def in_one_line(error: object) -> str:
    """Return the text of an error without line breaks."""
    return " ".join(str(error).split())


def _where(error: Exception) -> str:
    """Describe an error: its type and text, and the line of user code that raised it."""
    from fastmarl.testing.report import own_frame

    frame = own_frame(error)
    return f"{type(error).__name__}: {in_one_line(error)} ({frame.filename}:{frame.lineno}, {frame.name})"


def integer(least: int, text: str, most: int | None = None) -> int:
    """Parse an integer from `least` to `most`, or without an upper bound."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be an integer >= {least}, got {text!r}")
    if most is not None and number > most:
        raise argparse.ArgumentTypeError(f"must be an integer <= {most:,}, got {text:.100}")
    return number


positive = partial(integer, 1, most=10**12)  # more than a machine can do in years
copies = partial(integer, 1, most=2**20)  # copies of an env, each with its own arrays
episodes = partial(integer, 1, most=10**7)  # all of them are kept until their returns are shown
width = partial(integer, 1, most=10**6 - 1)  # width of a layer; the number of weights grows with its square
natural = partial(integer, 0)


def real(what: str, fits: Callable[[float], bool], text: str) -> float:
    """Parse a finite number for which `fits` returns True."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and fits(number)):
        raise argparse.ArgumentTypeError(f"must be a number {what}, got {text!r}")
    return number


seconds = partial(real, "of seconds above 0", lambda number: number > 0)
above_zero = partial(real, "above 0", lambda number: number > 0)
not_zero = partial(real, "other than 0", bool)
not_negative = partial(real, ">= 0", lambda number: number >= 0)
share = partial(real, "from 0 to 1", lambda number: 0 <= number <= 1)


def json_object(text: str) -> dict:
    """Parse a JSON object into a dict."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object, got invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value


def output_file(suffixes: tuple[str, ...], text: str) -> Path:
    """Parse the path of a file or stream, check that it is writable, and create missing parent directories."""
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


def existing_folder(text: str) -> Path:
    """Parse the path of an existing directory."""
    path = Path(text)
    if path.is_dir():
        return path
    if path.exists():
        raise argparse.ArgumentTypeError(f"{text!r} is a file, not a folder")
    raise argparse.ArgumentTypeError(f"folder {text!r} does not exist{did_you_mean(_like(path))}")


def _like(path: Path) -> list[str]:
    """Return existing paths in which the first missing part is spelled similarly."""
    parents = [each for each in path.parents if each.is_dir()]
    if not parents or not path.name:
        return []
    missing, *rest = path.relative_to(parents[0]).parts
    close = difflib.get_close_matches(missing, sorted(os.listdir(parents[0])), 1)
    return [str(found) for name in close if (found := parents[0].joinpath(name, *rest)).exists()]


picture_file = partial(output_file, (".png", ".pdf", ".svg"))
json_file = partial(output_file, (".json", ".jsonl"))
markdown_file = partial(output_file, (".md",))


def add_env_arguments(
    parser: argparse.ArgumentParser, num_envs: int, *, needs_env: bool = True, limit: str = "never", rule: str = "error"
) -> None:
    """Add the options for the environment, number of envs, episode rules, device of the modules, and seed."""
    parser.add_argument("--env", required=needs_env, metavar="NAME", help=ENV_HELP)
    parser.add_argument("--env-config", type=json_object, default={}, metavar="JSON", help="options of the env")
    add_episode_rules(parser, limit, rule)
    parser.add_argument("--num-envs", type=copies, default=num_envs, help="default %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or auto (default %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="default %(default)s")


def add_episode_rules(parser: Any, limit: str = "never", rule: str = "error") -> None:
    """Add the options for episode rules; `limit` and `rule` describe their defaults in the help."""
    parser.add_argument("--max-steps", type=positive, metavar="N", help=f"env steps after which an episode is cut "
                        f"(default: {limit})")  # fmt: skip
    parser.add_argument("--respawn", action="store_true", help="a finished agent that is observed again begins a new "
                        f"trajectory (default: {rule})")  # fmt: skip
    parser.add_argument("--late-rewards", choices=LATE_REWARDS, default="error", metavar="RULE", help="a reward for a "
                        f"finished agent: {', '.join(LATE_REWARDS)} (default: {rule})")  # fmt: skip


def add_env_workers(parser: Any) -> None:
    """Add --num-env-workers; with the default, None, envs are stepped in the current process."""
    parser.add_argument("--num-env-workers", type=natural, metavar="N", help="step the environments in N worker "
                        "processes; 0: one for each core (default: in this process)")  # fmt: skip


def add_hiddens(parser: argparse.ArgumentParser) -> None:
    """Add --hiddens, the layer sizes of the default networks."""
    parser.add_argument("--hiddens", type=width, nargs="+", default=[64, 64], help="layers (default 64 64)")


def runner_config(args: argparse.Namespace, **options: Any) -> Any:
    """Build an EnvRunnerConfig from the arguments."""
    from fastmarl.core.config import EnvRunnerConfig

    search_current_folder(args.env)
    return EnvRunnerConfig(
        env=env_of(args.env, args.max_steps),
        env_config=args.env_config,
        num_envs_per_env_runner=args.num_envs,
        model_config={"fcnet_hiddens": args.hiddens},
        device=args.device,
        seed=args.seed,
        respawn=args.respawn,
        late_rewards=args.late_rewards,
        **options,
    )


def env_of(name: str, max_steps: int | None) -> Any:
    """Return the named environment for `EnvRunnerConfig(env=...)`, with a time limit if `max_steps` is given."""
    from fastmarl.core.envs.time_limit import time_limited

    return name if max_steps is None else time_limited(name, max_steps)


def search_current_folder(env_name: str) -> None:
    """Make "package.module:Name" importable from the current directory, as with `python -m`, also in worker processes.

    Known packages are never imported from there: their names need no --trust, and the directory may be untrusted.
    """
    from fastmarl.core.envs.registry import is_known

    if ":" in env_name:
        sys.path.insert(0, os.getcwd())
    elif "." in env_name and not is_known(env_name):  # a package name, or a missing colon
        sys.path.append(os.getcwd())

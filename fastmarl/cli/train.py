"""`fastmarl train`."""

from __future__ import annotations

import argparse
import csv
import json
import shlex
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from fastmarl.cli.arguments import ENV_HELP, json_object, natural, output_folder, positive, search_current_folder
from fastmarl.cli.terminal import Terminal
from fastmarl.core.errors import FastmarlError
from fastmarl.report.plots import OURS, picture

EXAMPLES = ("ippo",)
STEPS, EPISODES = 1_000_000, 1000


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("train", help="train with one of the examples; write curve, picture and checkpoint")
    parser.add_argument("example", choices=EXAMPLES, help="independent PPO with a shared policy: examples/ippo.py")
    parser.add_argument("--env", required=True, metavar="NAME", help=ENV_HELP)
    parser.add_argument("--env-config", type=json_object, default={}, metavar="JSON", help="options of the env")
    parser.add_argument("--num-envs", type=positive, default=128, help="copies of the env (default %(default)s)")
    parser.add_argument("--gamma", type=float, default=0.95, help="discount (default %(default)s)")
    parser.add_argument(
        "--epochs", type=positive, default=4, help="over the steps of each update (default %(default)s)"
    )
    parser.add_argument("--entropy", type=float, default=0.01, help="weight of its bonus (default %(default)s)")
    parser.add_argument("--min-std", type=float, default=1e-6, metavar="STD", help="advantages are divided by at least "
                        "this (default %(default)s)")  # fmt: skip
    parser.add_argument("--explore", action="store_true", help="sample actions in the evaluation, too")
    parser.add_argument("--steps", type=positive, default=STEPS, help="env steps (default %(default)s)")
    parser.add_argument("--episodes", type=positive, default=EPISODES, help="of the evaluation (default %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="default %(default)s")
    parser.add_argument(
        "--folder", type=output_folder, help="for curve.csv, curve.png and checkpoint (default runs/EXAMPLE)"
    )
    parser.add_argument("--no-plot", action="store_true", help="write no curve.png, which needs matplotlib")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Train, show and draw. After Ctrl-C, curve.csv has the curve until then, and there is no new checkpoint."""
    if not args.no_plot:
        import matplotlib  # noqa: F401  before the work, not after it
    args.folder = args.folder or Path("runs") / args.example
    search_current_folder(args.env)
    module, done = example(args.example), 0
    with terminal.progress("training", args.steps) as add:

        def report(steps: int, seconds: float, mean_return: float) -> None:
            nonlocal done
            add(steps - done)
            done = steps

        found = module.run(args, report)
    play = "sampled" if args.explore else "greedy"
    terminal.show(found.table(f"{play} play after {args.steps:,} env steps of {args.env}"))
    if not args.no_plot:
        draw_curve(args.folder / "curve.csv", args.env, args.folder / "curve.png")
    terminal.show(
        f"in {args.folder}: curve and checkpoint; to play with it:\n"
        f"fastmarl evaluate {args.folder / 'checkpoint'} --env {args.env}{_config_of(args)}"
    )
    return 0


def example(name: str) -> ModuleType:
    """The module of an example's file, which a wheel has in the package and a clone beside it; `main()` was not called.

    Raises:
        FastmarlError: there is no such file.
    """
    package = Path(__file__).parents[1]
    paths = [package / "examples" / f"{name}.py", package.parent / "examples" / f"{name}.py"]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise FastmarlError(f"the example {name} is missing: looked for {' and '.join(map(str, paths))}")
    spec = spec_from_file_location(f"fastmarl_example_{name}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _config_of(args: argparse.Namespace) -> str:
    return f" --config {shlex.quote(json.dumps(args.env_config))}" if args.env_config else ""


def draw_curve(curve: Path, title: str, path: Path) -> None:
    """Draw the mean return over env steps that an example has written to `curve`."""
    with curve.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with picture(path, 7, 4) as figure:
        axes = figure.subplots()
        steps, means = ([float(row[key]) for row in rows] for key in ("env_steps", "episode_return_mean"))
        axes.plot(steps, means, color=OURS)
        axes.set_title(title)
        axes.set_xlabel("env steps")
        axes.set_ylabel("mean return of the last 100 episodes")

"""`fastmarl tournament`."""

from __future__ import annotations

import argparse
from typing import Any

from fastmarl.cli.arguments import json_object, picture, positive
from fastmarl.cli.checkpoints import add_arguments, env_of, policy_in
from fastmarl.cli.terminal import Terminal
from fastmarl.core.errors import ConfigError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("tournament", help="let the policies of checkpoints play each other; show ratings")
    parser.add_argument("players", nargs="+", type=_player, metavar="NAME=FOLDER", help="a name, and a folder that "
                        "runner.save_to_path() has written, with one module, or with one named as each "
                        "side")  # fmt: skip
    add_arguments(parser, num_envs=128)
    parser.add_argument("--episodes", type=_even, default=100, help="of each pair, half on either side (default "
                        "%(default)s)")  # fmt: skip
    parser.add_argument("--sides", type=json_object, default={}, metavar="JSON", help='{"agent": "side"}, of two '
                        "sides; default: each agent is a side")  # fmt: skip
    parser.add_argument("--greedy", action="store_true", help="take the most likely actions instead of sampling them")
    parser.add_argument("--plot", type=picture, metavar="PNG", help="draw payoffs and ratings")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Play, show, save and draw."""
    import torch

    from fastmarl.play.arena.matches import tournament

    if args.plot:
        import matplotlib  # noqa: F401  before the work, not after it
    if len(args.players) < 2 or len(dict(args.players)) < len(args.players):
        raise ConfigError(f"a tournament needs players of different names, got {[name for name, _ in args.players]}")
    torch.set_num_threads(1)
    env = env_of(args)
    with terminal.status("reading checkpoints ..."):
        players = {name: policy_in(folder) for name, folder in args.players}
    total = args.episodes * len(players) * (len(players) - 1) // 2
    with terminal.progress("playing", total) as add:
        result = tournament(
            players,
            env,
            episodes=args.episodes,
            sides=lambda agent: args.sides.get(str(agent), str(agent)),
            explore=not args.greedy,
            seed=args.seed,
            on_progress=add,
            env_config=args.config,
            num_envs_per_env_runner=min(args.num_envs, total),
            device=args.device,
        )
    terminal.show(result.table(f"{args.env}, {args.episodes} games of each pair"))
    for path, write, what in ((args.csv, result.to_csv, "pairs"), (args.plot, result.plot, "picture")):
        if path:
            write(path)
            terminal.show(f"{what}: {path}")
    return 0


def _even(text: str) -> int:
    """A positive one."""
    if (number := positive(text)) % 2:
        raise argparse.ArgumentTypeError(f"must be even, half of the games on either side, got {text!r}")
    return number


def _player(text: str) -> tuple[str, str]:
    name, sign, folder = text.partition("=")
    if not (name and sign and folder):
        raise argparse.ArgumentTypeError(f"must be NAME=FOLDER, got {text!r}")
    return name, folder

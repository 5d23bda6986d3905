"""`fastmarl evaluate`."""

from __future__ import annotations

import argparse
from typing import Any

from fastmarl.cli.arguments import json_object, positive
from fastmarl.cli.checkpoints import add_arguments, env_of, policy_in
from fastmarl.cli.terminal import Terminal


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("evaluate", help="play whole episodes with the policies of a checkpoint; show returns")
    parser.add_argument("checkpoint", metavar="FOLDER", help="that runner.save_to_path() has written")
    add_arguments(parser, num_envs=16)
    parser.add_argument("--episodes", type=positive, default=100, help="default %(default)s")
    parser.add_argument("--mapping", type=json_object, default={}, metavar="JSON", help="of a checkpoint with several "
                        'modules: {"agent": "module"}; other agents have the module of their own name')  # fmt: skip
    parser.add_argument("--explore", action="store_true", help="sample actions instead of taking the most likely ones")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Play, show and save."""
    import torch

    from fastmarl.play.arena.evaluation import evaluate

    torch.set_num_threads(1)
    policy, env = policy_in(args.checkpoint, args.mapping), env_of(args)
    with terminal.status("playing ..."):
        found = evaluate(
            policy,
            env,
            episodes=args.episodes,
            explore=args.explore,
            env_config=args.config,
            num_envs_per_env_runner=min(args.num_envs, args.episodes),
            device=args.device,
            seed=args.seed,
        )
    terminal.show(found.table(f"{args.checkpoint}, {args.env}, {args.episodes} episodes"))
    if args.csv:
        found.to_csv(args.csv)
        terminal.show(f"episodes: {args.csv}")
    return 0

"""`fastmarl evaluate` and `fastmarl tournament`: policies out of checkpoint folders play."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastmarl.cli.arguments import (
    add_env_arguments,
    json_object,
    output_file,
    picture_file,
    positive,
    search_current_folder,
)
from fastmarl.cli.terminal import Terminal
from fastmarl.core.errors import ConfigError

csv_file = partial(output_file, (".csv",))


def add_evaluate(commands: Any) -> None:
    parser = commands.add_parser("evaluate", help="play whole episodes with the policies of a checkpoint; show returns")
    parser.add_argument("checkpoint", metavar="FOLDER", help="that runner.save_to_path() has written")
    _add_arguments(parser, num_envs=16)
    parser.add_argument("--episodes", type=positive, default=100, help="default %(default)s")
    parser.add_argument("--mapping", type=json_object, default={}, metavar="JSON", help="of a checkpoint with several "
                        'modules: {"agent": "module"}; other agents have the module of their own name')  # fmt: skip
    parser.add_argument("--explore", action="store_true", help="sample actions instead of taking the most likely ones")
    parser.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace, terminal: Terminal) -> int:
    """Play, show and save."""
    import torch

    from fastmarl.play.arena.evaluation import evaluate

    torch.set_num_threads(1)
    policy, env = _policy_in(args.checkpoint, args.mapping), _env_of(args)
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


def add_tournament(commands: Any) -> None:
    parser = commands.add_parser("tournament", help="let the policies of checkpoints play each other; show ratings")
    parser.add_argument("players", nargs="+", type=_player, metavar="NAME=FOLDER", help="a name, and a folder that "
                        "runner.save_to_path() has written, with one module, or with one named as each "
                        "side")  # fmt: skip
    _add_arguments(parser, num_envs=128)
    parser.add_argument("--episodes", type=_even, default=100, help="of each pair, half on either side (default "
                        "%(default)s)")  # fmt: skip
    parser.add_argument("--sides", type=json_object, default={}, metavar="JSON", help='{"agent": "side"}, of two '
                        "sides; default: each agent is a side")  # fmt: skip
    parser.add_argument("--greedy", action="store_true", help="take the most likely actions instead of sampling them")
    parser.add_argument("--plot", type=picture_file, metavar="PNG", help="draw payoffs and ratings")
    parser.set_defaults(run=_tournament)


def _tournament(args: argparse.Namespace, terminal: Terminal) -> int:
    """Play, show, save and draw."""
    import torch

    from fastmarl.play.arena.matches import tournament

    if args.plot:
        import matplotlib  # noqa: F401  before the work, not after it
    if len(args.players) < 2 or len(dict(args.players)) < len(args.players):
        raise ConfigError(f"a tournament needs players of different names, got {[name for name, _ in args.players]}")
    torch.set_num_threads(1)
    env = _env_of(args)
    with terminal.status("reading checkpoints ..."):
        players = {name: _policy_in(folder) for name, folder in args.players}
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


def _add_arguments(parser: argparse.ArgumentParser, num_envs: int) -> None:
    """Where they play."""
    add_env_arguments(parser, num_envs)
    parser.add_argument("--max-steps", type=positive, metavar="N", help="env steps after which an episode is cut")
    parser.add_argument("--csv", type=csv_file, metavar="FILE", help="write the figures")


def _env_of(args: argparse.Namespace) -> Any:
    """Return the environment, as `EnvRunnerConfig(env=...)` takes it."""
    from fastmarl.core.envs.time_limit import time_limited

    search_current_folder(args.env)
    return args.env if args.max_steps is None else time_limited(args.env, args.max_steps)


def _policy_in(folder: str, module_of: Mapping[str, str] | None = None) -> Any:
    """The `fastmarl.Policy` in a checkpoint folder.

    Args:
        module_of: agent id, as text -> module id, where the checkpoint has several modules; agents that are not in it
            have the module of their own name.

    Raises:
        CheckpointError: there is no checkpoint of a runner, or it needs modules or connectors that are not fastmarl's.
    """
    from fastmarl.play.policy import Policy

    return Policy.from_checkpoint(folder, policy_mapping_fn=partial(_module_for, module_of or {}))


def _module_for(module_of: Mapping[str, str], agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return module_of.get(str(agent_id), str(agent_id))

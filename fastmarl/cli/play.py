"""`fastmarl evaluate` and `fastmarl tournament`: play with the policies of training runs and checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fastmarl.cli.arguments import (
    MAX_STEPS,
    add_env_arguments,
    episodes,
    existing_folder,
    json_object,
    output_file,
    picture_file,
    search_current_folder,
)
from fastmarl.cli.runs import load_run, note_of_limit, rules_of_play
from fastmarl.cli.terminal import Terminal
from fastmarl.core.errors import ConfigError

csv_file = partial(output_file, (".csv",))
RULES: dict[str, Any] = {"env_config": {}, "max_steps": None, "respawn": False, "late_rewards": "error"}


def add_evaluate(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate", help="play whole episodes with the policies of a training run; show returns"
    )
    parser.add_argument("checkpoint", metavar="FOLDER", type=existing_folder, help="folder of a training run, a "
                        "checkpoint in it, or a checkpoint of runner.save_to_path()")  # fmt: skip
    _add_arguments(parser, num_envs=16)
    parser.add_argument("--episodes", type=episodes, default=100, help="default %(default)s")
    parser.add_argument("--mapping", type=json_object, default={}, metavar="JSON", help="for a checkpoint with several "
                        'modules: {"agent": "module"}; other agents use the mapping of the run or, '
                        "outside of runs, the module with their name")  # fmt: skip
    parser.add_argument("--explore", action="store_true", help="sample actions instead of taking the most likely ones")
    parser.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace, terminal: Terminal) -> int:
    """Play episodes, then show and save the returns."""
    import torch

    from fastmarl.play.arena.evaluation import evaluate

    torch.set_num_threads(1)
    policy, run = _policy_in(args.checkpoint, trust=args.trust, module_of=args.mapping)
    _complete(args, {str(args.checkpoint): run})
    with terminal.status("playing ..."):
        found = evaluate(
            policy,
            **rules_of_play(args),
            episodes=args.episodes,
            explore=args.explore,
            num_envs_per_env_runner=min(args.num_envs, args.episodes),
            device=args.device,
            seed=args.seed,
        )
    title = f"{args.checkpoint}, {args.env}, {args.episodes} episodes"
    terminal.show(found.table(title), *note_of_limit(found.lengths, args))
    if args.csv:
        found.to_csv(args.csv)
        terminal.show(f"episodes: {args.csv}")
    return 0


def add_tournament(commands: Any) -> None:
    parser = commands.add_parser("tournament", help="let the policies of checkpoints play each other; show ratings")
    parser.add_argument("players", nargs="+", type=_player, metavar="NAME=FOLDER", help="a name, and the folder of "
                        "a training run or a checkpoint, with one module, or one for each side, named like it"
                        )  # fmt: skip
    _add_arguments(parser, num_envs=128)
    parser.add_argument("--episodes", type=_even, default=100, help="of each pair, half on either side (default "
                        "%(default)s)")  # fmt: skip
    parser.add_argument("--sides", type=json_object, default={}, metavar="JSON", help='{"agent": "side"}, of two '
                        "sides; default: each agent is a side")  # fmt: skip
    parser.add_argument("--greedy", action="store_true", help="take the most likely actions instead of sampling them")
    parser.add_argument("--plot", type=picture_file, metavar="PNG", help="draw payoffs and ratings")
    parser.set_defaults(run=_tournament)


def _tournament(args: argparse.Namespace, terminal: Terminal) -> int:
    """Play all games, then show, save and plot the result."""
    import torch

    from fastmarl.play.arena.matches import tournament

    if args.plot:
        import matplotlib  # noqa: F401  fail early if it is missing
    if len(args.players) < 2 or len(dict(args.players)) < len(args.players):
        raise ConfigError(f"a tournament needs players with different names, got {[name for name, _ in args.players]}")
    torch.set_num_threads(1)
    with terminal.status("reading checkpoints ..."):
        loaded = {name: _policy_in(folder, trust=args.trust) for name, folder in args.players}
    players = {name: policy for name, (policy, _) in loaded.items()}
    _complete(args, {name: run for name, (_, run) in loaded.items()})
    total = args.episodes * len(players) * (len(players) - 1) // 2
    with terminal.progress("playing", total) as add:
        result = tournament(
            players,
            **rules_of_play(args),
            episodes=args.episodes,
            sides=lambda agent: args.sides.get(str(agent), str(agent)),
            explore=not args.greedy,
            seed=args.seed,
            on_progress=add,
            num_envs_per_env_runner=min(args.num_envs, total),
            device=args.device,
        )
    title = f"{args.env}, {args.episodes} games of each pair"
    terminal.show(result.table(title), *note_of_limit(result.lengths, args))
    for path, write, what in ((args.csv, result.to_csv, "pairs"), (args.plot, result.plot, "picture")):
        if path:
            write(path)
            terminal.show(f"{what}: {path}")
    return 0


def _even(text: str) -> int:
    """Parse a positive even integer."""
    if (number := episodes(text)) % 2:
        raise argparse.ArgumentTypeError(f"must be even, as half of the games are played on each side, got {text!r}")
    return number


def _player(text: str) -> tuple[str, Path]:
    name, sign, folder = text.partition("=")
    if not (name and sign and folder):
        raise argparse.ArgumentTypeError(f"must be NAME=FOLDER, got {text!r}")
    return name, existing_folder(folder)


def _add_arguments(parser: argparse.ArgumentParser, num_envs: int) -> None:
    """Add the options shared by both commands."""
    limit, rule = f"the run's limit, or {MAX_STEPS:,}", "the run's rule, or error"
    add_env_arguments(parser, num_envs, needs_env=False, limit=limit, rule=rule)
    parser.set_defaults(**dict.fromkeys(RULES))  # default: from the run
    parser.add_argument(
        "--trust", action="store_true", help="import your own env and networks that a run's folder names"
    )
    parser.add_argument("--csv", type=csv_file, metavar="FILE", help="write the figures")


def _complete(args: argparse.Namespace, runs: Mapping[str, argparse.Namespace | None]) -> None:
    """Fill in --env, --env-config and the episode rules from the training runs of the players.

    Raises:
        ConfigError: If no environment, or more than one, can be found.
    """
    known = {
        name: {option: getattr(run, option) for option in ("env", *RULES)}
        for name, run in runs.items()
        if run is not None
    }
    if args.env is None:
        if not known:
            raise ConfigError(f"--env is required: found no training run in {' or '.join(runs)}")
        first, *others = known.values()
        if any(other != first for other in others):
            raise ConfigError(f"the players were trained in different environments, {known}; choose one with --env")
        args.env = first["env"]
    saved = next((rules for rules in known.values() if rules["env"] == args.env), RULES)
    for option in RULES:
        if getattr(args, option) is None:
            setattr(args, option, saved[option])
    search_current_folder(args.env)


def _policy_in(
    folder: Path, *, trust: bool, module_of: Mapping[str, str] | None = None
) -> tuple[Any, argparse.Namespace | None]:
    """Return the `fastmarl.Policy` in a directory, and the options of its training run, or None outside of runs.

    Args:
        folder: Directory of a run or a checkpoint.
        trust: True to import code named in the run options.
        module_of: Agent id as text -> module id. All other agents use the mapping of the run or, outside of runs, the
            module named like the agent.

    Raises:
        CheckpointError: If there is no checkpoint, or it needs custom modules or connectors.
        ConfigError: If the directory contains training runs but is not one, or a module of `module_of` is missing.
    """
    from fastmarl.play.policy import Policy
    from fastmarl.training.run_folder import checkpoint_in, runs_in

    module_of = module_of or {}
    if (loaded := load_run(folder, trust=trust)) is not None:
        policy, run = loaded
        if module_of:
            policy.policy_mapping_fn = partial(_module_for, module_of, policy.policy_mapping_fn)
    else:
        checkpoint, run = checkpoint_in(folder), None
        if checkpoint == folder and (runs := runs_in(folder)):
            raise ConfigError(f"{folder} is not a training run but contains some; pass one of them, such as {runs[0]}")
        policy = Policy.from_checkpoint(checkpoint, policy_mapping_fn=partial(_module_for, module_of, None))
    if unknown := [module for module in module_of.values() if module not in policy.module_ids]:
        raise ConfigError(f"--mapping names {', '.join(map(repr, unknown))}, but {folder} has the modules "
                          f"{policy.module_ids}")  # fmt: skip
    return policy, run


def _module_for(
    module_of: Mapping[str, str], otherwise: Callable[..., str] | None, agent_id: Any, episode: Any, **kwargs: Any
) -> str:
    if str(agent_id) in module_of or otherwise is None:
        return module_of.get(str(agent_id), str(agent_id))
    return otherwise(agent_id, episode, **kwargs)

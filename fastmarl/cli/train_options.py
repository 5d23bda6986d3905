"""The options of `fastmarl train`, and of the examples that can be trained with it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastmarl.cli.arguments import (
    ENV_HELP,
    Parser,
    above_zero,
    existing_folder,
    json_object,
    natural,
    positive,
    seconds,
    share,
)
from fastmarl.core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from fastmarl.training import Algorithm

SECONDS = 120.0  # between checkpoints: the most work that a crash costs, on any machine and in any environment
HIDDENS = [64, 64]
NOT_SAVED = ("run", "resume", "trust", "overwrite", "folder", "episodes", "explore", "no_plot")
CHANGEABLE = ("steps", "checkpoint_every", "device", "record_actions", "tensorboard", "wandb")  # where a run is resumed


def add_options(parser: argparse.ArgumentParser, algorithm: Algorithm) -> dict[str, Any]:
    """Add all options.

    Returns:
        Their defaults, which parsing leaves out: a run that is resumed needs to know what was given.
    """
    before = set(parser._actions)
    _add_all(parser, algorithm)
    defaults = {}
    for action in set(parser._actions) - before:
        defaults[action.dest] = action.default
        action.help = (action.help or "") % vars(action)
        action.default = argparse.SUPPRESS
    return defaults


def _add_all(parser: argparse.ArgumentParser, algorithm: Algorithm) -> None:
    default = {"hiddens": HIDDENS, **algorithm.defaults}
    task = parser.add_argument_group("task")
    task.add_argument("--env", default=default["env"], metavar="NAME", help=f"{ENV_HELP} (default %(default)s)")
    task.add_argument("--env-config", type=json_object, metavar="JSON", help="options of the env")
    task.add_argument("--num-envs", type=positive, default=default["num_envs"], help="copies of the env (default "
                      "%(default)s)")  # fmt: skip
    task.add_argument("--policies", nargs="+", type=_policy, default=[], metavar="NAME=PATTERN", help="several "
                      "policies: hunters='adversary_*' prey='agent_*', by agents' names; or each, one for each agent "
                      "(default: one for all agents)")  # fmt: skip
    learning = parser.add_argument_group("learning")
    learning.add_argument("--steps", type=positive, default=default["steps"], help="env steps (default %(default)s)")
    learning.add_argument("--seed", type=natural, default=0, help="default %(default)s")
    learning.add_argument("--gamma", type=share, default=default["gamma"], help="discount (default %(default)s)")
    learning.add_argument("--lr", type=above_zero, default=default["lr"], help="learning rate, which falls to a "
                          "fiftieth (default %(default)s)")  # fmt: skip
    learning.add_argument("--hiddens", type=positive, nargs="+", default=default["hiddens"], metavar="N", help="sizes "
                          f"of the hidden layers (default {' '.join(map(str, default['hiddens']))})")  # fmt: skip
    learning.add_argument("--module", nargs="+", default=[], metavar="[POLICY=]MODULE:NAME", help="networks of your "
                          "own: an RLModule class, or a class or function that takes observation_space, action_space "
                          "and model_config and returns a torch.nn.Module")  # fmt: skip
    learning.add_argument("--device", default="cpu", help="cpu, cuda or auto (default %(default)s)")
    algorithm.add_arguments(learning)
    _add_folder(parser)
    evaluation = parser.add_argument_group("evaluation in the end")
    evaluation.add_argument("--episodes", type=positive, default=1000, help="default %(default)s")
    evaluation.add_argument("--explore", action="store_true", help="sample actions instead of taking the likeliest")


def _add_folder(parser: argparse.ArgumentParser) -> None:
    folder = parser.add_argument_group("folder")
    folder.add_argument("--folder", type=Path, help="for the curve and checkpoints (default "
                        "runs/ENV-ALGORITHM-seedN-DATE-TIME)")  # fmt: skip
    folder.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder")
    folder.add_argument("--resume", type=existing_folder, metavar="FOLDER", help="go on with the run in this folder; "
                        "all options come from there, but --steps may be raised")  # fmt: skip
    folder.add_argument("--trust", action="store_true", help="import your own env and networks that the run's folder "
                        "names")  # fmt: skip
    folder.add_argument("--checkpoint-every", type=seconds, default=SECONDS, metavar="SECONDS", help="default "
                        "%(default)g; also after Ctrl-C and in the end")  # fmt: skip
    folder.add_argument("--no-plot", action="store_true", help="write no curve.png, which needs matplotlib")
    folder.add_argument("--record-actions", action="store_true", help="keep what fastmarl replay FOLDER needs to show "
                        "any episode again")  # fmt: skip
    folder.add_argument("--tensorboard", action="store_true", help="write events for TensorBoard, too")
    folder.add_argument("--wandb", metavar="PROJECT", help="send the curve to Weights & Biases, too")


def _policy(text: str) -> str:
    name, sign, patterns = text.partition("=")
    if text != "each" and not (name and sign and all(patterns.split(","))):
        raise argparse.ArgumentTypeError(f"must be each, or NAME=PATTERN such as prey='agent_*', got {text!r}")
    return text


def parse_options(algorithm: Algorithm, argv: Sequence[str]) -> argparse.Namespace:
    """Return the options that `fastmarl train ALGORITHM` would have with these arguments."""
    parser = Parser(prog=f"fastmarl train {algorithm.name}")
    defaults = add_options(parser, algorithm)
    args = argparse.Namespace(**{**defaults, **vars(parser.parse_args(argv))})
    check(algorithm, args)
    return args


def check(algorithm: Algorithm, args: argparse.Namespace) -> None:
    """Complete the options, and raise ConfigError for those that don't go together."""
    default = algorithm.defaults
    if args.env_config is None:
        args.env_config = default.get("env_config", {}) if args.env == default["env"] else {}
    if args.policies and not algorithm.takes_policies:
        raise ConfigError(f"{algorithm.name} trains one policy for all agents: leave out --policies, or train ippo")
    if args.module and not algorithm.takes_module:
        raise ConfigError(f"{algorithm.name} has a network of its own: leave out --module, or train ippo")
    if "each" in args.policies and len(args.policies) > 1:
        raise ConfigError(f"--policies takes each, or NAME=PATTERN for each policy, got {' '.join(args.policies)}")
    names = [text.partition("=")[0] for text in args.policies]
    if len(set(names)) < len(names):
        raise ConfigError(f"--policies names a policy twice: {', '.join(names)}; give all its patterns at once, as in "
                          f"a='x_*,y_*'")  # fmt: skip
    if any(not 0 < width < 10**6 for width in args.hiddens):
        raise ConfigError(f"--hiddens has layers of {max(args.hiddens):,} units; give fewer than a million")


def saved_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that belong into run.json."""
    return {name: value for name, value in vars(args).items() if name not in NOT_SAVED}


def with_saved(given: Mapping[str, Any], defaults: Mapping[str, Any], about: Mapping[str, Any]) -> argparse.Namespace:
    """Return the options of a run that is resumed.

    Args:
        given: options on the command line; with more steps, or another way to watch and save, the run goes on so.
        defaults: of the options that no run saves.
        about: what run.json says.

    Raises:
        ConfigError: the command line has another option than the run had, or fewer steps.
        CheckpointError: the saved options are not those of the algorithm.
    """
    folder, saved = given["resume"], about["options"]
    if unknown := sorted(saved.keys() ^ (defaults.keys() - set(NOT_SAVED))):
        raise CheckpointError(f"{folder}/run.json was written by another version of fastmarl: {', '.join(unknown)}")
    for name, value in given.items():
        if name in saved and name not in CHANGEABLE and value != saved[name]:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"--resume goes on with {option} {saved[name]}, not {value}: leave out {option}, or "
                              f"begin another run")  # fmt: skip
    resumed = argparse.Namespace(**{**defaults, **saved, **given})
    if resumed.steps < saved["steps"]:
        raise ConfigError(f"--resume can't make a run shorter: it is of {saved['steps']:,} env steps; give more")
    return resumed

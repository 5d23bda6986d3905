"""Options of `fastmarl train`, and of the examples that it runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastmarl.cli.arguments import (
    ENV_HELP,
    MAX_STEPS,
    Parser,
    above_zero,
    add_env_workers,
    add_episode_rules,
    copies,
    episodes,
    existing_folder,
    json_object,
    natural,
    not_negative,
    not_zero,
    positive,
    seconds,
    share,
    width,
)
from fastmarl.core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from fastmarl.training import Algorithm

SECONDS = 120.0  # between checkpoints: a crash loses at most this much work on any machine
HIDDENS = [64, 64]
NOT_SAVED = ("run", "resume", "trust", "overwrite", "folder", "wandb")
CHANGEABLE = (  # options that may change when a run is resumed
    *("steps", "checkpoint_every", "device", "num_env_workers", "record_actions", "tensorboard"),
    *("episodes", "explore", "no_plot"),
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser, algorithm: Algorithm) -> dict[str, Any]:
    """Add all options to a parser.

    Returns:
        Defaults of the options. Parsing leaves them out, so that a resumed run can tell which options were given.
    """
    num_before = len(parser._actions)
    _add_all(parser, algorithm)
    defaults = {}
    for action in parser._actions[num_before:]:
        defaults[action.dest] = action.default
        action.help = (action.help or "") % vars(action)
        action.default = argparse.SUPPRESS
    return defaults


def _add_all(parser: argparse.ArgumentParser, algorithm: Algorithm) -> None:
    default = {"hiddens": HIDDENS, "reward_scale": 1.0, **algorithm.defaults}
    task = parser.add_argument_group("task")
    task.add_argument("--env", default=default["env"], metavar="NAME", help=f"{ENV_HELP} (default %(default)s)")
    task.add_argument("--env-config", type=json_object, metavar="JSON", help="options of the env")
    task.add_argument("--num-envs", type=copies, default=default["num_envs"], help="copies of the env (default "
                      "%(default)s)")  # fmt: skip
    add_env_workers(task)
    task.add_argument("--policies", nargs="+", type=_policy, default=[], metavar="NAME=PATTERN", help="several "
                      "policies: hunters='adversary_*' prey='agent_*', by agents' names; or each, one for each agent "
                      "(default: one for all agents)")  # fmt: skip
    add_episode_rules(task, f"never in training, after {MAX_STEPS:,} in evaluations")
    learning = parser.add_argument_group("learning")
    learning.add_argument("--steps", type=positive, default=default["steps"], help="env steps (default %(default)s)")
    learning.add_argument("--seed", type=natural, default=0, help="default %(default)s")
    learning.add_argument("--gamma", type=share, default=default["gamma"], help="discount (default %(default)s)")
    learning.add_argument("--reward-scale", type=not_zero, default=default["reward_scale"], metavar="FACTOR",
                          help="factor of the rewards that are learned from; returns are shown without it (default "
                          "%(default)g)")  # fmt: skip
    learning.add_argument("--lr", type=above_zero, default=default["lr"], help="initial learning rate; decays to "
                          "1/50, but stays constant with epymarl (default %(default)s)")  # fmt: skip
    learning.add_argument("--hiddens", type=width, nargs="+", default=default["hiddens"], metavar="N", help="sizes "
                          f"of the hidden layers (default {' '.join(map(str, default['hiddens']))})")  # fmt: skip
    learning.add_argument("--module", nargs="+", default=[], metavar="[POLICY=]MODULE:NAME", help="networks of your "
                          "own: an RLModule class, or a class or function that takes observation_space, action_space "
                          "and model_config and returns a torch.nn.Module")  # fmt: skip
    learning.add_argument("--device", default="cpu", help="cpu, cuda or auto (default %(default)s)")
    algorithm.add_arguments(learning)
    _add_folder(parser)
    evaluation = parser.add_argument_group("evaluation")
    evaluation.add_argument("--evaluate-every", type=positive, metavar="STEPS", help="evaluate in training, too, each "
                            "time that this number of env steps was made")  # fmt: skip
    evaluation.add_argument("--episodes", type=episodes, default=1000, help="of each evaluation (default %(default)s)")
    evaluation.add_argument("--explore", action="store_true", help="sample actions instead of the most likely ones")


def add_ppo_arguments(group: Any, *, fragment: int = 25) -> None:
    """Add the options shared by all PPO examples.

    Args:
        group: A parser or an argument group.
        fragment: Default of --fragment.
    """
    group.add_argument("--fragment", type=positive, default=fragment, metavar="STEPS", help="env steps of each copy of "
                       "the env between updates (default %(default)s)")  # fmt: skip
    group.add_argument("--lambda", type=share, default=0.95, dest="lambda_", metavar="LAMBDA", help="trace decay of "
                       "advantages (default %(default)s)")  # fmt: skip
    group.add_argument("--epochs", type=positive, default=4, help="passes over the steps of an update (default "
                       "%(default)s)")  # fmt: skip
    group.add_argument("--minibatches", type=positive, default=4, help="minibatches of a pass (default %(default)s)")
    group.add_argument("--clip", type=not_negative, default=0.2, help="largest distance of the probability ratio from "
                       "1 (default %(default)s)")  # fmt: skip
    group.add_argument("--entropy", type=not_negative, default=0.01, help="entropy weight (default %(default)s)")


def add_q_arguments(group: Any) -> None:
    """Add the options shared by all Q-learning examples."""
    group.add_argument("--fragment", type=positive, default=25, metavar="STEPS", help="env steps of each copy of the "
                       "env between updates (default %(default)s)")  # fmt: skip
    group.add_argument("--updates", type=positive, default=16, help="updates after each fragment (default "
                       "%(default)s)")  # fmt: skip
    group.add_argument("--epsilon-steps", type=positive, default=100_000, metavar="STEPS", help="env steps in which "
                       "the share of random actions falls from 1 to 0.05 (default %(default)s)")  # fmt: skip


def _add_folder(parser: argparse.ArgumentParser) -> None:
    folder = parser.add_argument_group("folder")
    folder.add_argument("--folder", type=Path, help="for the curve and checkpoints (default "
                        "runs/ENV-ALGORITHM-seedN-DATE-TIME)")  # fmt: skip
    folder.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder")
    folder.add_argument("--resume", type=existing_folder, metavar="FOLDER", help="continue the run in this folder "
                        "with its options; --steps may be raised, and these changed: "
                        f"{', '.join(f'--{name}' for name in CHANGEABLE[1:])}".replace("_", "-"))  # fmt: skip
    folder.add_argument("--trust", action="store_true", help="import your own env and networks that the run's folder "
                        "names")  # fmt: skip
    folder.add_argument("--checkpoint-every", type=seconds, default=SECONDS, metavar="SECONDS", help="default "
                        "%(default)g; also after Ctrl-C and at the end")  # fmt: skip
    folder.add_argument("--no-plot", action="store_true", help="write no curve.png, which needs matplotlib")
    folder.add_argument("--record-actions", action="store_true", help="record actions, so that fastmarl replay FOLDER "
                        "can show any episode")  # fmt: skip
    folder.add_argument("--tensorboard", action="store_true", help="also write events for TensorBoard")
    folder.add_argument("--wandb", metavar="PROJECT", help="also send the curve to Weights & Biases; give it "
                        "again with --resume")  # fmt: skip


def _policy(text: str) -> str:
    name, sign, patterns = text.partition("=")
    if text != "each" and not (name and sign and all(patterns.split(","))):
        raise argparse.ArgumentTypeError(f"must be 'each' or NAME=PATTERN, such as prey='agent_*', got {text!r}")
    return text


def parse_options(algorithm: Algorithm, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of `fastmarl train ALGORITHM`; return all options, including defaults."""
    parser = Parser(prog=f"fastmarl train {algorithm.name}")
    defaults = add_options(parser, algorithm)
    args = argparse.Namespace(**{**defaults, **vars(parser.parse_args(argv))})
    check(algorithm, args)
    return args


def check(algorithm: Algorithm, args: argparse.Namespace) -> None:
    """Fill in `env_config` if it is missing; raise ConfigError for invalid combinations of options."""
    default = algorithm.defaults
    if args.env_config is None:
        args.env_config = default.get("env_config", {}) if args.env == default["env"] else {}
    if args.policies and not algorithm.takes_policies:
        raise ConfigError(f"{algorithm.name} trains one policy for all agents: leave out --policies, or train ippo")
    if args.module and not algorithm.takes_module:
        raise ConfigError(f"{algorithm.name} has its own network: leave out --module, or train ippo")
    if "each" in args.policies and len(args.policies) > 1:
        raise ConfigError(f"--policies takes 'each', or NAME=PATTERN for each policy, got {' '.join(args.policies)}")
    names = [text.partition("=")[0] for text in args.policies]
    if len(set(names)) < len(names):
        raise ConfigError(f"--policies names a policy twice: {', '.join(names)}; pass all its patterns together, as in "
                          f"a='x_*,y_*'")  # fmt: skip


def saved_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options to save in run.json."""
    return {name: value for name, value in vars(args).items() if name not in NOT_SAVED}


def with_saved(given: Mapping[str, Any], defaults: Mapping[str, Any], about: Mapping[str, Any]) -> argparse.Namespace:
    """Return the options of a resumed run.

    Args:
        given: Options from the command line, which may raise --steps and change the `CHANGEABLE` options.
        defaults: Defaults of all options, used for options that the run did not save.
        about: Content of run.json.

    Raises:
        ConfigError: If the command line changes any other option of the run, or lowers the number of steps.
        CheckpointError: If the run saved an option that this version does not know.
    """
    folder, saved = given["resume"], about["options"]
    # Options missing in earlier versions get their defaults, which those versions used in training.
    if unknown := sorted(saved.keys() - defaults.keys()):
        raise CheckpointError(f"{folder}/run.json has options of another fastmarl version: {', '.join(unknown)}")
    known = {**defaults, **saved}
    for name, value in given.items():
        if name not in (*NOT_SAVED, *CHANGEABLE) and value != known[name]:
            option = f"--{name.rstrip('_').replace('_', '-')}"
            raise ConfigError(f"--resume continues with {option} {known[name]}, not {value}: leave out {option}, "
                              f"or start a new run")  # fmt: skip
    resumed = argparse.Namespace(**{**known, **given})
    if resumed.steps < saved["steps"]:
        raise ConfigError(f"--resume can't shorten a run: --steps must be at least {saved['steps']:,}")
    return resumed

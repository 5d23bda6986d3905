"""Reads training runs from the directories passed to commands: their options, and policies in checkpoints."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fastmarl.cli.arguments import MAX_STEPS, env_of, search_current_folder
from fastmarl.core.errors import CheckpointError, ConfigError, FastmarlError

if TYPE_CHECKING:
    import numpy as np

    from fastmarl.training import Algorithm

ALGORITHMS = ("ippo", "mappo", "iql", "vdn", "qmix", "recurrent_ippo", "epymarl")


def example(name: str) -> ModuleType:
    """Import an example by name, from the package (in a wheel) or next to it (in a clone), without calling `main()`.

    Raises:
        FastmarlError: If the file does not exist.
    """
    if name not in ALGORITHMS:  # it may come from an untrusted directory and be a path to foreign code
        raise FastmarlError(f"unknown algorithm {name!r}; choose from {', '.join(ALGORITHMS)}")
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


def described(folder: Path) -> dict[str, Any]:
    """Read run.json of the run that a run directory or checkpoint belongs to.

    Raises:
        CheckpointError: If the file is missing or damaged.
    """
    from fastmarl.training.run_folder import RunFolder, run_of

    return (run_of(folder) or RunFolder(folder)).description()


def check_trust(args: argparse.Namespace, folder: Path) -> None:
    """Raise ConfigError if options from a file name untrusted user code; with --trust, remember that it is trusted.

    The directory may be untrusted, and importing the code could run anything.
    """
    from fastmarl.core.envs.registry import may_be_named_by_a_file

    named = [*args.module, *([] if may_be_named_by_a_file(args.env) else [args.env])]
    if args.trust:
        remember_trust(args, folder)
    elif named and not _is_trusted(args, folder):
        raise ConfigError(f"the run's options name code that is not part of fastmarl: {', '.join(named)}; add --trust "
                          f"to allow importing it, now and in later commands")  # fmt: skip


def remember_trust(args: argparse.Namespace, folder: Path) -> None:
    """Allow later commands to import the user code named in the options of this directory.

    Without a writable home directory, nothing is remembered and later commands need --trust.
    """
    from fastmarl.core.envs.registry import is_known

    if args.module or not is_known(args.env):
        with suppress(OSError, RuntimeError):
            file = _trust_file(args, folder)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()


def _is_trusted(args: argparse.Namespace, folder: Path) -> bool:
    try:
        return _trust_file(args, folder).exists()
    except (OSError, RuntimeError):
        return False


def _trust_file(args: argparse.Namespace, folder: Path) -> Path:
    """Return the path of a file that exists if the options in the directory were trusted.

    Its name depends on the imported objects, the arguments passed to them, and the current directory, from which they
    may be imported.

    Raises:
        RuntimeError: If the user has no home directory.
    """
    folders = [str(each.resolve()) for each in (folder, Path())]
    trusted = json.dumps([*folders, args.module, args.env, args.env_config], sort_keys=True)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path.home() / ".local/state"
    return state / "fastmarl/trusted" / hashlib.sha256(trusted.encode()).hexdigest()


def rules_of_play(args: argparse.Namespace) -> dict[str, Any]:
    """Return the `EnvRunnerConfig` options for the env and its episode rules, with a limit on the episode length."""
    return {
        "env": env_of(args.env, args.max_steps or MAX_STEPS),
        "env_config": args.env_config,
        "respawn": args.respawn,
        "late_rewards": args.late_rewards,
    }


def note_of_limit(lengths: np.ndarray, args: argparse.Namespace) -> list[str]:
    """Return [a sentence about episodes cut off by the limit of `rules_of_play()`], or [] if there are none."""
    limit = args.max_steps or MAX_STEPS
    cut = int((lengths >= limit).sum())
    return [f"{cut:,} of {len(lengths):,} episodes reached the limit of {limit:,} env steps (--max-steps)"] * (cut > 0)


def policy_of_run(algorithm: Algorithm, args: argparse.Namespace, checkpoint: Path) -> Any:
    """Return the `fastmarl.Policy` in a checkpoint of a run, with networks and connectors from the run options."""
    from fastmarl.runner.runner import MultiAgentEnvRunner
    from fastmarl.training.algorithm import ONE_ENV

    config = replace(algorithm.make_config(args), **ONE_ENV, device="cpu")
    with MultiAgentEnvRunner.from_checkpoint(checkpoint, config) as runner:
        return policy_of_runner(runner)


def policy_of_runner(runner: Any) -> Any:
    """Return the `fastmarl.Policy` of the runner of a training run.

    The reward scale is set to 1, because the networks of these algorithms do not take rewards as input.
    """
    from fastmarl.play.policy import Policy

    policy = Policy.from_runner(runner)
    return Policy(replace(policy.options, reward_scale=1.0), policy.parts, policy.policy_mapping_fn, None)


def evaluation_of(policy: Any, args: argparse.Namespace) -> Any:
    """Evaluate the policy of a training run; return a `fastmarl.Evaluation`."""
    from fastmarl.play.arena.evaluation import evaluate

    return evaluate(
        policy,
        **rules_of_play(args),
        episodes=args.episodes,
        explore=args.explore,
        num_envs_per_env_runner=min(100, args.episodes),
        seed=args.seed,
    )


def load_run(path: Path, *, trust: bool) -> tuple[Any, argparse.Namespace] | None:
    """Return the policy in a run directory or checkpoint, and the run's options; None if the path is in no run."""
    from fastmarl.cli.train_options import add_options
    from fastmarl.training.run_folder import checkpoint_in, run_of

    if (run := run_of(path)) is None:
        return None
    about = run.description()
    algorithm = example(about["algorithm"]).ALGORITHM
    defaults, saved = add_options(argparse.ArgumentParser(), algorithm), about["options"]
    if unknown := sorted(saved.keys() - defaults.keys()):
        raise CheckpointError(f"{run.path}/run.json has options of another fastmarl version: {', '.join(unknown)}")
    args = argparse.Namespace(**{**defaults, **saved, "trust": trust})  # earlier versions had fewer options
    check_trust(args, run.path)
    for name in (args.env, *args.module):
        search_current_folder(name)
    return policy_of_run(algorithm, args, checkpoint_in(path)), args

"""Policies out of checkpoint folders. These hold weights, so the arguments say what else they need."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastmarl.cli.arguments import ENV_HELP, json_object, natural, output_file, positive, search_current_folder
from fastmarl.errors import CheckpointError, ConfigError

csv_file = partial(output_file, (".csv",))


def add_arguments(parser: argparse.ArgumentParser, num_envs: int) -> None:
    """What `runner_with` reads, except the folder."""
    parser.add_argument("--env", required=True, metavar="NAME", help=ENV_HELP)
    parser.add_argument("--config", "--env-config", type=json_object, default={}, metavar="JSON", help="env_config")
    parser.add_argument("--model-config", type=json_object, default={}, metavar="JSON", help="that of the training: "
                        "the weights must fit the default networks that it makes")  # fmt: skip
    parser.add_argument("--max-steps", type=positive, metavar="N", help="env steps after which an episode is cut")
    parser.add_argument("--num-envs", type=positive, default=num_envs, help="default %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or auto (default %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="default %(default)s")
    parser.add_argument("--csv", type=csv_file, metavar="FILE", help="write the figures")


def env_of(args: argparse.Namespace) -> Any:
    """What EnvRunnerConfig takes as env."""
    from fastmarl.envs.time_limit import time_limited

    search_current_folder(args.env)
    return args.env if args.max_steps is None else time_limited(args.env, args.max_steps)


def runner_with(folder: str, env: Any, args: argparse.Namespace, module_of: Mapping[str, str], num_envs: int) -> Any:
    """A runner whose modules have the weights in a checkpoint folder.

    Args:
        env: from `env_of(args)`.
        module_of: agent id, as text -> module id, where the checkpoint has several modules; agents that are not in it
            have the module of their own name.

    Raises:
        CheckpointError: there is no checkpoint of a runner, it needs connectors, or its weights don't fit.
    """
    from fastmarl.config import EnvRunnerConfig
    from fastmarl.runner import MultiAgentEnvRunner

    weights = weights_in(folder)
    config = EnvRunnerConfig(
        env=env,
        env_config=args.config,
        policies=list(weights),
        policy_mapping_fn=None if len(weights) == 1 else partial(_module_for, module_of),
        model_config=args.model_config,
        num_envs_per_env_runner=num_envs,
        device=args.device,
        seed=args.seed,
    )
    runner = MultiAgentEnvRunner(config)
    try:
        runner.set_weights(weights)
    except ConfigError as error:
        runner.stop()
        raise CheckpointError(
            f"the weights in {folder} don't fit the networks that --model-config {args.model_config} makes for "
            f"{args.env}: {error}"
        ) from error
    except BaseException:
        runner.stop()
        raise
    return runner


def _module_for(module_of: Mapping[str, str], agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return module_of.get(str(agent_id), str(agent_id))


def weights_in(folder: str) -> dict[str, Any]:
    """Module id -> its weights.

    Raises:
        CheckpointError: see `runner_with`.
    """
    from fastmarl.checkpoint import load_state

    state = load_state(folder)
    weights = state.get("rl_module") if isinstance(state, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise CheckpointError(f"{folder} is no checkpoint of a runner: runner.save_to_path() writes such")
    if connectors := state.get("env_to_module_connector"):
        raise CheckpointError(f"the modules {sorted(connectors)} in {folder} act on what connectors make of "
                              "observations, which this command doesn't know; use fastmarl.evaluate() in Python, with "
                              "MultiAgentEnvRunner.from_checkpoint()")  # fmt: skip
    return weights

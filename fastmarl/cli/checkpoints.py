"""Policies out of checkpoint folders, and where they play."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastmarl.cli.arguments import ENV_HELP, json_object, natural, output_file, positive, search_current_folder

csv_file = partial(output_file, (".csv",))


def add_arguments(parser: argparse.ArgumentParser, num_envs: int) -> None:
    """Where they play."""
    parser.add_argument("--env", required=True, metavar="NAME", help=ENV_HELP)
    parser.add_argument("--config", "--env-config", type=json_object, default={}, metavar="JSON", help="env_config")
    parser.add_argument("--max-steps", type=positive, metavar="N", help="env steps after which an episode is cut")
    parser.add_argument("--num-envs", type=positive, default=num_envs, help="default %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or auto (default %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="default %(default)s")
    parser.add_argument("--csv", type=csv_file, metavar="FILE", help="write the figures")


def env_of(args: argparse.Namespace) -> Any:
    """What EnvRunnerConfig takes as env."""
    from fastmarl.core.envs.time_limit import time_limited

    search_current_folder(args.env)
    return args.env if args.max_steps is None else time_limited(args.env, args.max_steps)


def policy_in(folder: str, module_of: Mapping[str, str] | None = None) -> Any:
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

"""The options of a training run that define its runner: environment, policies and networks."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

import torch

from fastmarl.core.config import DEFAULT_MODULE_ID, EnvRunnerConfig
from fastmarl.core.envs.time_limit import time_limited
from fastmarl.core.errors import ConfigError, FastmarlError, did_you_mean, similar
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.specs import RLModuleSpec
from fastmarl.runner.loop.envs import Envs

EACH = "each"  # value of --policies


def runner_options(args: Namespace) -> dict[str, Any]:
    """Return options of `EnvRunnerConfig` for the shared options of a training run.

    Args:
        args: Options of the run.

    Raises:
        ConfigError: If --policies matches no agents, or --module does not name a class or function that creates a
            network.
    """
    options: dict[str, Any] = {
        "env": args.env if args.max_steps is None else time_limited(args.env, args.max_steps),
        "env_config": args.env_config,
        "num_envs_per_env_runner": args.num_envs,
        "gym_env_vectorize_mode": "sync" if args.num_env_workers is None else "async",
        "num_env_workers": args.num_env_workers or 0,
        "device": args.device,
        "seed": args.seed,
        "respawn": args.respawn,
        "late_rewards": args.late_rewards,
        "reward_scale": args.reward_scale,
    }
    ids = [DEFAULT_MODULE_ID]
    if args.policies:
        mapping = _policy_mapping(args.policies, _agents_of(args.env, args.env_config))
        ids = list(dict.fromkeys(mapping.policy_of.values()))
        options["policy_mapping_fn"] = mapping
    networks = _networks(args.module, ids)
    if args.policies or networks:
        options["policies"] = {module_id: networks.get(module_id) for module_id in ids}
    return options


@dataclass(frozen=True)
class PolicyMapping:
    """A policy mapping function that looks up agent ids by their `str()`."""

    policy_of: Mapping[str, str]

    def __call__(self, agent_id: Hashable, episode: Any, **kwargs: Any) -> str:
        try:
            return self.policy_of[str(agent_id)]
        except KeyError:
            raise ConfigError(f"--policies was resolved for the agents {list(self.policy_of)}, but the env has an "
                              f"agent {agent_id!r}") from None  # fmt: skip


def _agents_of(env: str, env_config: Mapping[str, Any]) -> list[str]:
    """Return the agent ids declared by an environment, as text."""
    envs = Envs(EnvRunnerConfig(env=env, env_config=env_config))
    try:
        agents = [str(agent) for agent in envs.named_agents]
    finally:
        envs.close()
    if not agents:
        raise ConfigError(f"--policies needs an env that lists its agents in possible_agents; {env} lists none")
    return agents


def _policy_mapping(given: list[str], agents: list[str]) -> PolicyMapping:
    """Assign each agent to the first policy with a matching pattern."""
    if given == [EACH]:
        return PolicyMapping({agent: agent for agent in agents})
    policy_of: dict[str, str] = {}
    for text in given:
        name, _, patterns = text.partition("=")
        matched = [agent for agent in agents if any(fnmatchcase(agent, each) for each in patterns.split(","))]
        if not matched:
            raise ConfigError(f"--policies {text}: no agent matches; the env's agents are {', '.join(agents)}")
        for agent in matched:
            policy_of.setdefault(agent, name)
        if name not in policy_of.values():
            raise ConfigError(f"--policies {text}: its agents already have a policy; put it before the others")
    if left := [agent for agent in agents if agent not in policy_of]:
        raise ConfigError(f"--policies leaves out {', '.join(left)}; add a policy for them, such as OTHERS='*'")
    return PolicyMapping(policy_of)


def _networks(given: list[str], ids: list[str]) -> dict[str, RLModuleSpec]:
    """Return {module id: network spec}; an entry without a policy name applies to all policies."""
    specs: dict[str, RLModuleSpec] = {}
    for text in given:
        policy, sign, name = text.rpartition("=")
        if sign and policy not in ids:
            raise ConfigError(f"--module {text}: unknown policy {policy!r}"
                              f"{did_you_mean(similar(policy, ids)) or f'; choose from {ids}'}")  # fmt: skip
        try:
            make = object_named(name, "MODULE:NAME")
        except ConfigError as error:
            raise ConfigError(f"--module {text}: {error}") from error
        if not callable(make):
            raise ConfigError(f"--module {text}: {name} is a {type(make).__name__}, not a class or function that "
                              f"creates a network")  # fmt: skip
        specs |= {
            module_id: RLModuleSpec(module_class=OwnNetwork(make, name)) for module_id in ([policy] if sign else ids)
        }
    return specs


@dataclass(frozen=True)
class OwnNetwork:
    """Creates a user network: RLModules with the arguments of RLlib, all others with the spaces and `model_config`."""

    make: Callable[..., torch.nn.Module]
    name: str

    def __call__(self, **options: Any) -> torch.nn.Module:
        make: Any = self.make
        try:
            if inspect.isclass(make) and issubclass(make, RLModule):
                made = make(**options)
            else:
                made = make(options["observation_space"], options["action_space"], options["model_config"])
        except FastmarlError:
            raise
        except Exception as error:
            raise ConfigError(f"--module: {self.name}(observation_space, action_space, model_config) failed: "
                              f"{type(error).__name__}: {' '.join(str(error).split())}") from error  # fmt: skip
        if not isinstance(made, torch.nn.Module):
            raise ConfigError(f"--module: {self.name} returned a {type(made).__name__}, not a torch.nn.Module")
        return made


def object_named(name: str, form: str) -> Any:
    """Import the object named by "package.module:name".

    Args:
        name: Name of the object.
        form: Expected form of the name, for the error message.

    Raises:
        ConfigError: If there is no such object.
    """
    path, sign, attribute = name.partition(":")
    if not (path and attribute):
        parent, _, last = path.rpartition(".")
        hint = did_you_mean([f"{parent}:{last}"] if parent and last and not sign else [])
        example = f"my_package.my_module:{form.partition(':')[2].lower()}"
        raise ConfigError(f"expected {form}, such as {example}, got {name!r}{hint}")
    try:
        found = import_module(path)
    except Exception as error:
        raise ConfigError(f"importing {path} failed: {type(error).__name__}: {' '.join(str(error).split()):.300}"
                          ) from error  # fmt: skip
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{path} has no {attribute}{did_you_mean(similar(part, dir(found))[:1])}")
        found = getattr(found, part)
    return found

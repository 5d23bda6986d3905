"""Making a runner's parts from its config."""

import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import torch

from fastmarl.config import EnvRunnerConfig
from fastmarl.envs.arrays import ArrayEnv
from fastmarl.envs.base import as_multi_agent_env, env_spaces
from fastmarl.envs.check import check_spaces
from fastmarl.envs.context import EnvContext
from fastmarl.envs.registry import env_creator
from fastmarl.errors import ConfigError
from fastmarl.modules import MultiRLModule, RLModule, RLModuleSpec, as_rl_module
from fastmarl.spaces import RowLayout

Spaces = tuple[gym.Space, gym.Space]  # of observations, of actions


class Envs:
    """The envs of one runner, and their agents' spaces."""

    def __init__(self, config: EnvRunnerConfig):
        create = env_creator(config.env)
        n = config.num_envs_per_env_runner
        self.contexts = [EnvContext(config.env_config, config.worker_index, i, n) for i in range(n)]
        self.all: list[Any] = []
        self._to_close: list[Any] = []
        self._spaces: list[dict[Hashable, Spaces]] = [{} for _ in self.contexts]
        try:
            for context in self.contexts:
                self.all.append(as_multi_agent_env(create(context)))
                self._to_close.append(self.all[-1])
                if self.is_batch:
                    _check_size(self.all[0], n)
                    break
            for env_index, env in enumerate(self.all):
                check_spaces(env, env_index)
        except BaseException:
            self.close()
            raise
        agents = [list(getattr(env, "possible_agents", None) or []) for env in self.all]
        self.possible_agents = agents * n if self.is_batch else agents

    @property
    def is_batch(self) -> bool:
        """Whether the envs are one object, which steps all of them at once."""
        return isinstance(self.all[0], ArrayEnv)

    def spaces(self, env_index: int, agent_id: Hashable) -> Spaces:
        """An agent's (observation space, action space)."""
        known = self._spaces[env_index]
        if agent_id not in known:
            if len(known) > 4096:  # an open world
                known.clear()
            known[agent_id] = env_spaces(self.all[0 if self.is_batch else env_index], agent_id)
        return known[agent_id]

    def close(self) -> None:
        """Close them all; the first error is raised when all were tried.

        They stay known: episodes that were returned before may be asked for their agents' spaces later.
        """
        errors = []
        to_close, self._to_close = self._to_close, []
        for env in to_close:
            try:
                if hasattr(env, "close"):
                    env.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _check_size(batch: ArrayEnv, num_envs: int) -> None:
    if batch.num_envs != num_envs:
        raise ConfigError(f"num_envs_per_env_runner is {num_envs}, but {type(batch).__name__} is a batch of "
                          f"{batch.num_envs} envs; let what makes it make env_config.num_envs")  # fmt: skip


def make_modules(config: EnvRunnerConfig, envs: Envs) -> MultiRLModule:
    """The modules named in `policies`."""
    return MultiRLModule({module_id: make_module(config, envs, module_id) for module_id in config.module_specs})


def make_module(config: EnvRunnerConfig, envs: Envs, module_id: str) -> RLModule:
    """One of `policies`: a given instance, a built spec, or the default net for its agents' spaces.

    Raises:
        ConfigError: `policies` has something else for it, or its spaces are not known.
    """
    given = config.module_specs[module_id]
    given = config.rl_module_spec if given is None else given
    spaces = _given_spaces(given) or _module_spaces(config, envs, module_id)
    if isinstance(given, torch.nn.Module):
        return _with_spaces(as_rl_module(given, *spaces), module_id)
    if given is not None and not isinstance(given, RLModuleSpec):
        raise ConfigError(f"policies[{module_id!r}] must be None, an RLModuleSpec or a torch.nn.Module, got {given!r}")
    spec = given or RLModuleSpec()
    module = RLModuleSpec(
        module_class=spec.module_class,
        observation_space=spaces[0],
        action_space=spaces[1],
        inference_only=spec.inference_only,
        model_config=spec.model_config or dict(config.model_config),
    ).build()
    return _with_spaces(module, module_id)


def _with_spaces(module: RLModule, module_id: str) -> RLModule:
    if _given_spaces(module) is None:
        raise ConfigError(f"module {module_id!r} has no observation_space or no action_space; set both")
    return module


def spaces_of(module: RLModule) -> Spaces:
    """The (observation space, action space) of a module that `make_module` has made."""
    spaces = _given_spaces(module)
    assert spaces is not None
    return spaces


def warn_of_objects(module_id: str, layout: RowLayout) -> None:
    """Tell which parts of a module's observations are no arrays."""
    paths = [list(leaf.path) for leaf in layout.leaves if leaf.dtype == object]
    if paths:
        warnings.warn(
            f"the observations of module {module_id!r} have parts that are no arrays, at {paths}: these are recorded "
            "one by one, which is slow, and the module gets arrays of objects",
            stacklevel=5,
        )


def _given_spaces(given: Any) -> Spaces | None:
    observation_space, action_space = getattr(given, "observation_space", None), getattr(given, "action_space", None)
    return None if observation_space is None or action_space is None else (observation_space, action_space)


def _module_spaces(config: EnvRunnerConfig, envs: Envs, module_id: str) -> Spaces:
    """The spaces of the agents that the mapping function gives to a module (all agents', where they are the same)."""
    agents = envs.possible_agents[0]
    if not agents and (common := _given_spaces(envs.all[0])):
        return common
    if not agents:
        raise ConfigError(f"module {module_id!r} needs spaces: the env has neither possible_agents nor spaces for all; "
                          f"give an RLModuleSpec with observation_space and action_space in `policies`")  # fmt: skip
    mapped = {agent: envs.spaces(0, agent) for agent in agents}
    if len(config.module_specs) > 1 and not _all_equal(list(mapped.values())):
        mapped = {agent: spaces for agent, spaces in mapped.items() if config.module_id_for(agent, None) == module_id}
    if not mapped:
        raise ConfigError(f"no agent of {agents} is mapped to {module_id!r}; give it an RLModuleSpec with spaces")
    if not _all_equal(list(mapped.values())):
        raise ConfigError(f"the agents of module {module_id!r} have different spaces: {mapped}; map them to different "
                          f"modules with `policies` and `policy_mapping_fn`")  # fmt: skip
    return next(iter(mapped.values()))


def _all_equal(values: list) -> bool:
    return all(value == values[0] for value in values)


@contextmanager
def evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """Dropout and the like are off while sampling; the module is left in the mode it was in."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True

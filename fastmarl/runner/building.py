"""Making a runner's parts from its config."""

import warnings
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import gymnasium as gym
import torch

from fastmarl.acting.backends.graphs import make_tick_graphs
from fastmarl.acting.inference import InferenceOptions
from fastmarl.config import EnvRunnerConfig
from fastmarl.connectors.env_to_module import EnvToModule, connectors_for
from fastmarl.connectors.module_connectors import ModuleConnectors
from fastmarl.connectors.rewards import RewardConnector
from fastmarl.envs.arrays import ArrayEnv
from fastmarl.envs.base import as_multi_agent_env, env_spaces
from fastmarl.envs.context import EnvContext
from fastmarl.envs.form import check_spaces
from fastmarl.envs.registry import env_creator
from fastmarl.errors import ConfigError, EnvCheckError
from fastmarl.modules import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec, as_rl_module
from fastmarl.seeds import Streams
from fastmarl.spaces import RowLayout
from fastmarl.vector.workers.process import EnvWorkers, WorkerOptions

Spaces = tuple[gym.Space, gym.Space]  # of observations, of actions


class Envs:
    """The envs of one runner, and their agents' spaces."""

    def __init__(self, config: EnvRunnerConfig):
        n = config.num_envs_per_env_runner
        self.contexts = [_context(config, i, n) for i in range(n)]
        self.all: list[Any] = []
        self.workers: EnvWorkers | None = None
        self._to_close: list[Any] = []
        self._spaces: list[dict[Hashable, Spaces]] = [{} for _ in self.contexts]
        if config.gym_env_vectorize_mode == "async":
            self.workers = make_workers(config, self.contexts)
            self.all = self.workers.envs
            self._to_close = [self.workers]
        else:
            self._make(config, n)
        agents = [list(getattr(env, "possible_agents", None) or []) for env in self.all]
        self.possible_agents = agents[:1] * n if self.is_batch else agents

    def _make(self, config: EnvRunnerConfig, n: int) -> None:
        self._create = env_creator(config.env)
        try:
            self._add(self.contexts[0])
            if self.is_batch:
                _check_batch(self.all[0], config)
                if (n_parts := config.worker_num_splits) > 1:
                    _check_turns(self.all[0])
                    self._split(config, n_parts)
            else:
                for context in self.contexts[1:]:
                    self._add(context)
            for env_index, env in enumerate(self.all):
                check_spaces(env, env_index)
        except BaseException:
            self.close()
            raise

    def _add(self, context: EnvContext) -> Any:
        self.all.append(as_multi_agent_env(self._create(context)))
        self._to_close.append(self.all[-1])
        return self.all[-1]

    def _split(self, config: EnvRunnerConfig, n_parts: int) -> None:
        """Smaller batches in the place of the one: only when it is made one knows that it is a batch."""
        whole, self.all = self.all[0], []
        self.close()
        for first in range(n_parts):
            size = len(self.contexts[first::n_parts])
            part = self._add(_context(config, first, size))
            _check_size(part, size)
            if not _are_alike(whole, part):
                raise EnvCheckError(f"{type(part).__name__} has other agents or spaces in a batch of {size} envs than "
                                    f"in one of {whole.num_envs}: {part.observation_spaces!r:.200}")  # fmt: skip

    def remake(self, env_index: int) -> None:
        """Make one of the envs anew, in its place; the old one is closed, if it can be.

        Raises:
            EnvCheckError: the new one has other agents or spaces. What its constructor raises comes through.
        """
        old, self._to_close[env_index] = self._to_close[env_index], None
        if old is not None:
            with suppress(Exception):
                old.close()
        new = as_multi_agent_env(self._create(self.contexts[env_index]))
        self.all[env_index] = self._to_close[env_index] = new
        before = self._spaces[env_index]
        self._spaces[env_index] = {}
        check_spaces(new, env_index)
        agents = list(getattr(new, "possible_agents", None) or [])
        if agents != self.possible_agents[env_index]:
            raise EnvCheckError(f"env {env_index} was made anew with other possible_agents: {agents!r:.200} instead of "
                                f"{self.possible_agents[env_index]!r:.200}")  # fmt: skip
        for agent in before.keys() & set(agents):
            if self.spaces(env_index, agent) != before[agent]:
                raise EnvCheckError(f"env {env_index} was made anew with other spaces of agent {agent!r}: "
                                    f"{self.spaces(env_index, agent)} instead of {before[agent]}")  # fmt: skip

    def remake_missing(self) -> None:
        """Make those anew of which the last `remake()` was interrupted, or failed."""
        for env_index, env in enumerate(self._to_close):
            if env is None:
                self.remake(env_index)

    @property
    def is_batch(self) -> bool:
        """Whether the envs are in one object that steps all of them at once, or in several such."""
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
        """Close them all; the first error is raised when all were tried."""
        errors = []
        while self._to_close:  # an interrupted call goes on where it was
            try:
                if hasattr(self._to_close[0], "close"):
                    self._to_close[0].close()
            except Exception as error:
                errors.append(error)
            del self._to_close[0]
        if errors:
            raise errors[0]


def _context(config: EnvRunnerConfig, vector_index: int, num_envs: int) -> EnvContext:
    return EnvContext(
        config.env_config,
        config.worker_index,
        vector_index,
        num_envs,
        num_workers=config.num_env_runners,
        remote=config.gym_env_vectorize_mode == "async",
    )


def make_workers(config: EnvRunnerConfig, contexts: list[EnvContext]) -> EnvWorkers:
    """Worker processes with all envs."""
    return EnvWorkers(
        config.env,
        contexts,
        num_workers=config.num_env_workers,
        options=WorkerOptions(config.env_worker_start_method, config.step_timeout_s),
        records_states=config.record_env_state,
        entropy=Streams(config.seed, config.worker_index, config.incarnation).of_worker,
    )


def _check_batch(batch: ArrayEnv, config: EnvRunnerConfig) -> None:
    if config.restart_failed_sub_environments:
        raise ConfigError(f"restart_failed_sub_environments is for single envs, but {type(batch).__name__} is a batch "
                          f"that steps by itself")  # fmt: skip
    _check_size(batch, config.num_envs_per_env_runner)


def _check_turns(batch: ArrayEnv) -> None:
    if not batch.may_take_turns:
        raise ConfigError(f"worker_num_splits is not for {type(batch).__name__}: its batches share random generators")


def _check_size(batch: ArrayEnv, num_envs: int) -> None:
    if batch.num_envs != num_envs:
        raise ConfigError(f"a batch of {num_envs} envs is wanted (num_envs_per_env_runner in worker_num_splits parts), "
                          f"but {type(batch).__name__} has {batch.num_envs}; let what makes it make as many as "
                          f"env_config.num_envs says")  # fmt: skip


def _are_alike(one: ArrayEnv, other: ArrayEnv) -> bool:
    """Whether two batches have the same agents and spaces."""
    return (one.groups, one.observation_spaces, one.action_spaces) == (
        other.groups,
        other.observation_spaces,
        other.action_spaces,
    )


def make_env_to_module(config: EnvRunnerConfig, envs: Envs) -> EnvToModule:
    """The connectors of the modules that have any.

    Raises:
        ConfigError: they don't fit the agents' spaces, these are not known, or there is no such module.
    """
    given = config.env_to_module_connector
    if isinstance(given, Mapping) and (unknown := given.keys() - config.module_specs.keys()):
        raise ConfigError(f"env_to_module_connector names {sorted(unknown)}, which are none of the modules "
                          f"{sorted(config.module_specs)}")  # fmt: skip
    made = {module_id: make_connectors(config, envs, module_id) for module_id in config.module_specs}
    return EnvToModule({module_id: connectors for module_id, connectors in made.items() if connectors is not None})


def make_connectors(config: EnvRunnerConfig, envs: Envs, module_id: str) -> ModuleConnectors | None:
    """The connectors of one module, if it has any."""
    if config.env_to_module_connector is None:
        return None
    spaces = _module_spaces(config, envs, module_id, GIVE_ENV)
    connectors = connectors_for(
        config.env_to_module_connector, module_id, envs.all[0], {module_id: spaces}, config.device
    )
    return ModuleConnectors(module_id, connectors, *spaces, keep_dtype=config.keep_dtype) if connectors else None


def make_inference_options(
    config: EnvRunnerConfig, device: torch.device, generator: torch.Generator
) -> InferenceOptions:
    """How the modules are run on this device, with this generator's random numbers."""
    compile_options = None
    if config.torch_compile_worker:
        compile_options = {
            "backend": config.torch_compile_worker_dynamo_backend,
            "mode": config.torch_compile_worker_dynamo_mode,
        }
    return InferenceOptions(
        lean=config.lean_inference,
        dtype=config.inference_dtype,
        compile=compile_options,
        graphs=make_tick_graphs(device, generator) if config.cuda_graphs else None,
    )


def make_reward_connector(config: EnvRunnerConfig) -> RewardConnector | None:
    """What makes the recorded rewards; None if they are those paid."""
    if config.reward_scale == 1 and config.clip_rewards in (None, False):
        return None
    return RewardConnector(config.reward_scale, config.clip_rewards)


def make_modules(config: EnvRunnerConfig, envs: Envs, env_to_module: EnvToModule) -> MultiRLModule:
    """The modules named in `policies`."""
    return MultiRLModule(
        {
            module_id: make_module(config, envs, module_id, env_to_module.get(module_id))
            for module_id in config.module_specs
        }
    )


def given_spec(config: EnvRunnerConfig, module_id: str) -> Any:
    """What `policies` or `rl_module_spec` have for a module; None: the default net."""
    given, others = config.module_specs[module_id], config.rl_module_spec
    if isinstance(others, MultiRLModuleSpec):
        others = others.rl_module_specs.get(module_id)
    return others if given is None else given


def check_module_options(config: EnvRunnerConfig) -> None:
    """Raises ConfigError for specs of modules that there are not, and options that none is made with."""
    specs, several = config.module_specs, config.rl_module_spec
    if isinstance(several, MultiRLModuleSpec) and (unknown := several.rl_module_specs.keys() - specs.keys()):
        raise ConfigError(f"rl_module_spec has {sorted(unknown)}, which are none of the policies {sorted(specs)}")
    if config.model_config and not any(_wants_model_config(given_spec(config, module_id)) for module_id in specs):
        raise ConfigError(f"model_config={config.model_config!r:.200} has no effect: all modules are given, or have "
                          f"one of their own")  # fmt: skip


def _wants_model_config(given: Any) -> bool:
    return not isinstance(given, torch.nn.Module) and not getattr(given, "model_config", None)


def make_module(config: EnvRunnerConfig, envs: Envs, module_id: str, connectors: ModuleConnectors | None) -> RLModule:
    """One of `policies`: a given instance, a built spec, or the default net for what it sees.

    Raises:
        ConfigError: `policies` has something else for it, its spaces are not known, or its connectors make other
            observations than it takes.
    """
    given = given_spec(config, module_id)
    spaces = _given_spaces(given) or _spaces_seen(config, envs, module_id, connectors)
    if isinstance(given, torch.nn.Module):
        return _checked(as_rl_module(given, *spaces), module_id, connectors)
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
    return _checked(module, module_id, connectors)


def _checked(module: RLModule, module_id: str, connectors: ModuleConnectors | None) -> RLModule:
    spaces = _given_spaces(module)
    if spaces is None:
        raise ConfigError(f"module {module_id!r} has no observation_space or no action_space; set both")
    if connectors is not None and not connectors.make(spaces[0]):
        raise ConfigError(f"module {module_id!r} has the observation_space {spaces[0]}, but its connectors make "
                          f"{connectors.observation_space}; give the module that one, or none")  # fmt: skip
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


def _spaces_seen(config: EnvRunnerConfig, envs: Envs, module_id: str, connectors: ModuleConnectors | None) -> Spaces:
    """A module's spaces, after connectors."""
    observation_space, action_space = _module_spaces(config, envs, module_id)
    return observation_space if connectors is None else connectors.observation_space, action_space


GIVE_SPEC = "give an RLModuleSpec with observation_space and action_space in `policies`"
GIVE_ENV = "give the env observation_space and action_space, which its connectors must know"


def _module_spaces(config: EnvRunnerConfig, envs: Envs, module_id: str, way_out: str = GIVE_SPEC) -> Spaces:
    """The spaces of the agents that the mapping function gives to a module (all agents', where they are the same)."""
    agents = envs.possible_agents[0]
    if not agents and (common := _given_spaces(envs.all[0])):
        return common
    if not agents:
        raise ConfigError(f"module {module_id!r} needs spaces: the env has neither possible_agents nor spaces for all; "
                          f"{way_out}")  # fmt: skip
    mapped = {agent: envs.spaces(0, agent) for agent in agents}
    if len(config.module_specs) > 1 and not _all_equal(list(mapped.values())):
        mapped = {agent: spaces for agent, spaces in mapped.items() if config.module_id_for(agent, None) == module_id}
    if not mapped:
        raise ConfigError(f"no agent of {agents} is mapped to {module_id!r}, so its spaces are not known; {way_out}")
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

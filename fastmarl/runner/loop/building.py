"""Builds the parts of a runner from its config."""

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS, EnvToModule, connectors_for
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.checks import for_each
from fastmarl.core.inference.options import InferenceOptions
from fastmarl.core.modules.base import RLModule, as_rl_module
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.modules.specs import MultiRLModuleSpec, RLModuleSpec
from fastmarl.core.native._dense import MOST_THREADS
from fastmarl.core.nets.graphs import make_tick_graphs
from fastmarl.core.nets.row_threads import RowThreads
from fastmarl.core.processes.cores import usable_cores
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.store.agent_spaces import Spaces
from fastmarl.runner.loop.envs import Envs


def make_env_to_module(
    config: EnvRunnerConfig, envs: Envs, before: EnvRunnerConfig | None = None, made: EnvToModule | None = None
) -> EnvToModule:
    """Build the connectors of all modules.

    Args:
        before, made: Previous config and the connectors built from it; a module keeps its connectors if rebuilding
            would produce the same ones.

    Raises:
        ConfigError: If connectors do not match the spaces of the agents, the spaces are unknown, or a module id does
            not exist.
    """
    for option in CONNECTOR_OPTIONS:
        given = getattr(config, option)
        if isinstance(given, Mapping) and (unknown := given.keys() - config.module_specs.keys()):
            raise ConfigError(f"{option} has unknown module ids {sorted(unknown)}; choose from "
                              f"{sorted(config.module_specs)}")  # fmt: skip
    of_modules = {
        module_id: _kept_connectors(config, envs, module_id, before, made.get(module_id) if made else None)
        or make_connectors(config, envs, module_id)
        for module_id in config.module_specs
    }
    return EnvToModule({module_id: each for module_id, each in of_modules.items() if each is not None})


def _kept_connectors(
    config: EnvRunnerConfig,
    envs: Envs,
    module_id: str,
    before: EnvRunnerConfig | None,
    connectors: ModuleConnectors | None,
) -> ModuleConnectors | None:
    """Return the connectors of a module if their options and input observations are unchanged."""
    if before is None or connectors is None or config.keep_float64 != before.keep_float64:
        return None
    for option in CONNECTOR_OPTIONS:
        now, then = (
            given.get(module_id) if isinstance(given, Mapping) else given
            for given in (getattr(config, option), getattr(before, option))
        )
        if now is not then:
            return None
    if connectors.spaces != _module_spaces(config, envs, module_id, GIVE_ENV):
        return None
    return connectors


def make_connectors(config: EnvRunnerConfig, envs: Envs, module_id: str) -> ModuleConnectors | None:
    """Build the connectors of a single module; return None if it has none."""
    options = {option: given for option in CONNECTOR_OPTIONS if (given := getattr(config, option)) is not None}
    if not options:
        return None
    spaces = _module_spaces(config, envs, module_id, GIVE_ENV)
    how = module_id, envs.all[0], {module_id: spaces}, config.device
    connectors = [each for option, given in options.items() for each in connectors_for(option, given, *how)]
    return ModuleConnectors(module_id, connectors, *spaces, keep_float64=config.keep_float64) if connectors else None


MOST_BY_DEFAULT = 8  # threads; starting them costs time in each call, so only long passes benefit


def make_inference_options(
    config: EnvRunnerConfig, device: torch.device, generator: torch.Generator
) -> InferenceOptions:
    """Collect the inference options of modules that run on this device and use this random generator."""
    compile_options = None
    if config.torch_compile_worker:
        compile_options = {
            "backend": config.torch_compile_worker_dynamo_backend,
            "mode": config.torch_compile_worker_dynamo_mode,
        }
    return InferenceOptions(
        native=config.native_inference,
        dtype=config.inference_dtype,
        compile=compile_options,
        threads=RowThreads(min(config.num_threads or min(usable_cores(), MOST_BY_DEFAULT), MOST_THREADS)),
        graphs=make_tick_graphs(device, generator) if config.cuda_graphs else None,
    )


def make_modules(config: EnvRunnerConfig, envs: Envs, env_to_module: EnvToModule) -> MultiRLModule:
    """Build the modules named in `policies`.

    Raises:
        ConfigError: As in `make_module`, or if modules with different spaces share a single object without spaces.
    """
    _check_shared(config, envs, env_to_module)
    return MultiRLModule(
        for_each(
            config.module_specs,
            lambda module_id: make_module(config, envs, module_id, env_to_module.get(module_id)),
        )
    )


def _check_shared(config: EnvRunnerConfig, envs: Envs, env_to_module: EnvToModule) -> None:
    """Raise ConfigError if modules with different spaces share an object whose spaces have yet to be filled in."""
    ids_of: dict[int, list[str]] = {}
    for module_id in config.module_specs:
        given = given_spec(config, module_id)
        if isinstance(given, RLModule) and _given_spaces(given) is None:
            ids_of.setdefault(id(given), []).append(module_id)
    for module_ids in ids_of.values():
        seen: dict[str, Spaces] = {}
        for module_id in module_ids if len(module_ids) > 1 else ():
            with suppress(ConfigError):  # no agent is mapped to this module; `make_module` reports other errors
                seen[module_id] = _spaces_seen(config, envs, module_id, env_to_module.get(module_id))
        if not _all_equal(list(seen.values())):
            raise ConfigError(f"the modules {list(seen)} are one object without spaces, but need different spaces: "
                              f"{seen}; pass a separate object for each module")  # fmt: skip


def given_spec(config: EnvRunnerConfig, module_id: str) -> Any:
    """Return the spec of a module in `policies` or `rl_module_spec`, or None for a default network."""
    given, others = config.module_specs[module_id], config.rl_module_spec
    if isinstance(others, MultiRLModuleSpec):
        others = others.rl_module_specs.get(module_id)
    return others if given is None else given


def check_module_options(config: EnvRunnerConfig) -> None:
    """Raise ConfigError for specs of unknown modules, and for a `model_config` that no module uses."""
    specs, several = config.module_specs, config.rl_module_spec
    if isinstance(several, MultiRLModuleSpec) and (unknown := several.rl_module_specs.keys() - specs.keys()):
        raise ConfigError(f"rl_module_spec has unknown module ids {sorted(unknown)}; choose from {sorted(specs)}")
    if config.model_config and not any(_wants_model_config(given_spec(config, module_id)) for module_id in specs):
        raise ConfigError(f"model_config={config.model_config!r:.200} has no effect: all modules are instances or have "
                          f"their own model_config")  # fmt: skip


def _wants_model_config(given: Any) -> bool:
    return not isinstance(given, torch.nn.Module) and not getattr(given, "model_config", None)


def make_module(config: EnvRunnerConfig, envs: Envs, module_id: str, connectors: ModuleConnectors | None) -> RLModule:
    """Build a module from the given instance or spec, or as a default network for its spaces.

    Raises:
        ConfigError: If `policies` has an object of another type, the spaces are unknown, or the module expects a
            different observation space than the connectors produce.
    """
    given = given_spec(config, module_id)
    observation_space, action_space = _given_spaces(given) or _spaces_seen(config, envs, module_id, connectors)
    if isinstance(given, torch.nn.Module):
        module = as_rl_module(given, observation_space, action_space)
    elif given is None or isinstance(given, RLModuleSpec):
        spec = given or RLModuleSpec()
        module = replace(
            spec,
            observation_space=observation_space,
            action_space=action_space,
            model_config=spec.model_config or dict(config.model_config),
        ).build()
    else:
        is_class = isinstance(given, type) and issubclass(given, torch.nn.Module)
        raise ConfigError(f"policies[{module_id!r}] must be None, an RLModuleSpec or a torch.nn.Module, got {given!r}"
                          + (f"; pass an instance, {given.__name__}(...)" if is_class else ""))  # fmt: skip
    spaces = _given_spaces(module)
    if spaces is None:
        raise ConfigError(f"module {module_id!r} lacks observation_space or action_space; set both")
    if connectors is not None and not connectors.make(spaces[0]):
        raise ConfigError(f"module {module_id!r} has the observation_space {spaces[0]}, but its connectors return "
                          f"{connectors.observation_space}; set the module's space to that, or to None")  # fmt: skip
    return module


def spaces_of(module: RLModule) -> Spaces:
    """Return the (observation space, action space) of a module built by `make_module`."""
    spaces = _given_spaces(module)
    assert spaces is not None
    return spaces


def warn_of_objects(module_id: str, layout: RowLayout) -> None:
    """Warn about parts of the module observations that are not arrays."""
    paths = [list(leaf.path) for leaf in layout.leaves if leaf.dtype == object]
    if paths:
        warnings.warn(
            f"the observations of module {module_id!r} have parts that are not arrays, at {paths}: they are recorded "
            "one by one, which is slow, and the module receives object arrays",
            stacklevel=5,
        )


def _given_spaces(given: Any) -> Spaces | None:
    observation_space, action_space = getattr(given, "observation_space", None), getattr(given, "action_space", None)
    return None if observation_space is None or action_space is None else (observation_space, action_space)


def _spaces_seen(config: EnvRunnerConfig, envs: Envs, module_id: str, connectors: ModuleConnectors | None) -> Spaces:
    """Return the (observation space, action space) of a module, after its connectors."""
    observation_space, action_space = _module_spaces(config, envs, module_id)
    return observation_space if connectors is None else connectors.observation_space, action_space


GIVE_SPEC = "pass an RLModuleSpec with observation_space and action_space in `policies`"
GIVE_ENV = "define observation_space and action_space in the env, as its connectors need them"


def _module_spaces(config: EnvRunnerConfig, envs: Envs, module_id: str, way_out: str = GIVE_SPEC) -> Spaces:
    """Return the spaces of the agents mapped to a module, or of any agent if all have equal spaces."""
    agents = envs.named_agents
    if not agents and (common := _given_spaces(envs.all[0])):
        return common
    if not agents:
        raise ConfigError(f"the spaces of module {module_id!r} are unknown: the env has neither possible_agents nor "
                          f"common spaces; {way_out}")  # fmt: skip
    mapped = {agent: envs.spaces(0, agent) for agent in agents}
    if len(config.module_specs) > 1 and not _all_equal(list(mapped.values())):
        mapped = {agent: spaces for agent, spaces in mapped.items() if config.module_id_for(agent, None) == module_id}
    if not mapped:
        raise ConfigError(f"no agent of {agents} is mapped to {module_id!r}, so its spaces are unknown; {way_out}")
    if not _all_equal(list(mapped.values())):
        raise ConfigError(f"the agents of module {module_id!r} have different spaces: {mapped}; map them to different "
                          f"modules with `policies` and `policy_mapping_fn`")  # fmt: skip
    return next(iter(mapped.values()))


def _all_equal(values: list) -> bool:
    return all(value == values[0] for value in values)

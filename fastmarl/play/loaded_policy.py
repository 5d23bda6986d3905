"""Modules and connectors built from their description in a checkpoint."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from fastmarl.core.config import EnvRunnerConfig, renamed
from fastmarl.core.connectors.base import ConnectorPiece
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.checks import for_each
from fastmarl.core.errors.states import check_keys, check_mapping, whole_number
from fastmarl.core.modules.base import AdaptedModule, RLModule, as_rl_module, copied
from fastmarl.core.spaces.plain import space_from_plain
from fastmarl.runner.state.saved_policy import (
    BUNDLED,
    DEFAULT_CLASSES,
    KEYS,
    OF_DEFAULT,
    OF_MODULE,
    VERSION,
    ModuleParts,
    PolicyOptions,
    bound_connectors,
    check_alike,
    connectors_of,
    layers_of,
    saved_connectors,
)


def parts_from(
    saved: Any,
    weights: Mapping[str, Any],
    learned: Mapping[str, Any],
    modules: Mapping[str, torch.nn.Module],
    connectors: Mapping[str, Sequence[ConnectorPiece]],
    module_ids: Collection[str] | None = None,
) -> tuple[PolicyOptions, dict[str, ModuleParts]]:
    """Build modules and connectors from a checkpoint, and load the weights into the given modules.

    Args:
        saved: Result of `described()`.
        weights: Module id -> weights.
        learned: Option -> connector states, as in `EnvToModule.get_state()`.
        modules: Module id -> object, which is copied, for modules of custom classes.
        connectors: Module id -> all connectors, which are copied, for modules with at least one custom connector.
        module_ids: Modules to build; None for all.

    Returns:
        The options, and a dict of module id -> parts.

    Raises:
        ConfigError: If an object is missing or does not match the saved one, or `saved` is damaged.
    """
    check_keys("the saved policies", saved, KEYS)
    if whole_number("the version of policies", saved["version"]) != VERSION:
        raise ConfigError(f"policies were saved in format {saved['version']}, but this fastmarl reads {VERSION}")
    options = _options(saved["options"])
    check_mapping("the saved modules", saved["modules"])
    check_mapping("the saved weights", weights)
    for option, states in learned.items():
        check_mapping(f"the saved connectors of {option}", states)
    entries = _chosen(saved["modules"], module_ids)
    for name, given in (("modules", modules), ("connectors", connectors)):
        check_mapping(f"{name}=, by module id,", given)
        if unknown := [module_id for module_id in given if module_id not in entries]:
            those = "saved modules" if module_ids is None else "modules of module_ids,"
            raise ConfigError(f"{name}= has {unknown}, which are not among the {those} {list(entries)}")
    _check_objects(entries, modules, connectors, len(saved["modules"]) > 1)

    def made(module_id: str) -> ModuleParts:
        return _made(module_id, entries[module_id], options, connectors.get(module_id), modules.get(module_id), weights)

    parts = for_each(entries, made)
    for option, side in connectors_of(parts).sides().items():
        side.set_state({module_id: state for module_id, state in learned[option].items() if module_id in parts})
        for module_id, states in side.get_state().items():
            if lacking := [name for name in states if name not in learned[option].get(module_id, {})]:
                raise ConfigError(f"module {module_id!r}: the state of its connectors {lacking} was not saved")
    for module_id, module in modules.items():
        (module if isinstance(module, RLModule) else AdaptedModule(module)).set_state(weights[module_id])
    return options, parts


def _chosen(saved: Mapping[str, Any], module_ids: Collection[str] | None) -> dict[str, Any]:
    if module_ids is not None:
        is_list = isinstance(module_ids, Collection) and not isinstance(module_ids, (str, bytes)) and len(module_ids)
        if not is_list or not all(isinstance(each, str) and each in saved for each in module_ids):
            raise ConfigError(f"module_ids must be a list of some of the saved modules {list(saved)}, got "
                              f"{module_ids!r:.200}")  # fmt: skip
    chosen = {module_id: entry for module_id, entry in saved.items() if module_ids is None or module_id in module_ids}
    for module_id, entry in chosen.items():
        check_keys(f"the saved data of module {module_id!r}", entry, OF_MODULE)
    return chosen


def _check_objects(
    entries: Mapping[str, Any], modules: Mapping[str, Any], connectors: Mapping[str, Any], may_choose: bool
) -> None:
    """Raise a ConfigError that lists all objects that are neither in the checkpoint nor passed."""
    nets = {id_: entry["class"] for id_, entry in entries.items() if entry["default"] is None and id_ not in modules}
    pieces = {
        id_: saved_connectors(id_, entry)
        for id_, entry in entries.items()
        if id_ not in connectors and any(each["arguments"] is None for each in saved_connectors(id_, entry))
    }
    problems = []
    if nets:
        which = ", ".join(f"module {module_id!r} is of class {name}" for module_id, name in nets.items())
        problems.append(f"{which}: of custom or modified networks, the checkpoint has only the weights; in Python, "
                        f"pass modules={{{_dots(nets)}}} with a module of that class to load them into")  # fmt: skip
    if pieces:
        which = ", ".join(
            f"module {module_id!r} has the connectors {[each['class'] for each in saved]}, of which "
            f"{[each['class'] for each in saved if each['arguments'] is None]}"
            for module_id, saved in pieces.items()
        )
        problems.append(f"{which} are not part of fastmarl (or have ids with equal text) and can't be rebuilt from the "
                        f"checkpoint; pass connectors={{{_dots(pieces)}}} with all of a module's connectors, in order"
                        )  # fmt: skip
    if problems:
        way = "; to load only some of the modules, pass module_ids=[...]" if may_choose else ""
        raise ConfigError("; ".join(problems) + way)


def _dots(module_ids: Iterable[str]) -> str:
    return ", ".join(f"{module_id!r}: ..." for module_id in module_ids)


def _made(
    module_id: str,
    entry: Mapping[str, Any],
    options: PolicyOptions,
    connectors: Sequence[ConnectorPiece] | None,
    given: torch.nn.Module | None,
    weights: Mapping[str, Any],
) -> ModuleParts:
    try:
        of_module = _made_connectors(module_id, entry, options, connectors)
        module = _made_module(module_id, entry, of_module, given)
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise ConfigError(f"the saved data of module {module_id!r} is invalid: {error!r}") from error
    try:
        module.set_state(weights[module_id])
    except (ConfigError, KeyError) as error:
        raise ConfigError(f"module {module_id!r}: {error}") from error
    return ModuleParts(module, of_module)


def _options(saved: Any) -> PolicyOptions:
    check_mapping("the saved options", saved)
    saved = renamed(saved)
    check_keys("the saved options", saved, [field.name for field in fields(PolicyOptions)])
    t = whole_number("t of the saved options", saved["t"])
    given = {name: value for name, value in saved.items() if name != "t"}
    for name, value in given.items():
        kinds = bool if isinstance(getattr(EnvRunnerConfig, name), bool) else (bool, int, float, str, tuple, type(None))
        if not isinstance(value, kinds):
            raise ConfigError(f"{name} of the saved options can't be {value!r:.200}")
    return PolicyOptions.of(EnvRunnerConfig(env=None, **given), t)  # checks the other options


def _made_connectors(
    module_id: str, entry: Mapping[str, Any], options: PolicyOptions, given: Sequence[ConnectorPiece] | None
) -> ModuleConnectors:
    saved = saved_connectors(module_id, entry)
    if given is None:
        given = [_made_connector(each) for each in saved]
    elif not isinstance(given, (list, tuple)):
        raise ConfigError(f"connectors[{module_id!r}] must be a list of all connectors of the module, in order, got "
                          f"{type(given).__name__}")  # fmt: skip
    else:
        check_alike(f"connectors[{module_id!r}]", saved, given)
    spaces = space_from_plain(entry["observation_space"]), space_from_plain(entry["action_space"])
    return bound_connectors(module_id, given, *spaces, options)


def _made_connector(saved: Mapping[str, Any]) -> ConnectorPiece:
    try:
        return BUNDLED[saved["class"]](**saved["arguments"])
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{saved!r:.200} is not among fastmarl's connectors {list(BUNDLED)}: {error!r}") from error


def _made_module(
    module_id: str, entry: Mapping[str, Any], connectors: ModuleConnectors, given: torch.nn.Module | None
) -> RLModule:
    """Copy the given module, or build a default network."""
    action_space = space_from_plain(entry["action_space"])
    if given is None:
        return _made_default(module_id, entry, action_space)
    module = as_rl_module(copied(given), connectors.observation_space, action_space).to("cpu")
    seen = module.observation_space
    if seen is None or not connectors.make(seen) or module.action_space != action_space:
        raise ConfigError(f"modules[{module_id!r}] has the spaces {seen} and {module.action_space}, but it was trained "
                          f"with {connectors.observation_space} and {action_space}")  # fmt: skip
    return module


def _made_default(module_id: str, entry: Mapping[str, Any], action_space: Any) -> RLModule:
    saved = entry["default"]
    check_keys(f"the default network {module_id!r}", saved, OF_DEFAULT)
    check_mapping("its model_config", saved["model_config"])
    module_class = DEFAULT_CLASSES.get(str(entry["class"]))
    if module_class is None:
        raise ConfigError(f"expected module {module_id!r} to have a class in {list(DEFAULT_CLASSES)}, got "
                          f"{entry['class']!r}")  # fmt: skip
    with torch.random.fork_rng(devices=[]):  # initial weights are replaced
        module = module_class(
            space_from_plain(saved["observation_space"]),
            action_space,
            inference_only=saved["inference_only"],
            model_config=saved["model_config"],
        )
    if layers_of(module) != saved["layers"]:
        raise ConfigError(f"module {module_id!r} is a default network whose layers were replaced, so it can't be "
                          f"rebuilt from the checkpoint; pass modules={{{module_id!r}: ...}} with such a module"
                          )  # fmt: skip
    return module

"""Description of a runner's modules in its checkpoint, with which they can act without the runner.

It is plain data: spaces, options, and the names and arguments of fastmarl's own classes. Classes of users are named but
never imported; their objects must be given again.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from fastmarl.core.checkpoint import stored_key
from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.agent_indicator import AgentIndicator
from fastmarl.core.connectors.base import ConnectorPiece, GetActions, NormalizeAndClipActions
from fastmarl.core.connectors.env_to_module import EnvToModule
from fastmarl.core.connectors.flatten_observations import FlattenObservations
from fastmarl.core.connectors.frame_stacking import FrameStacking
from fastmarl.core.connectors.mean_std_filter import MeanStdFilter
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.connectors.prev_actions_prev_rewards import PrevActionsPrevRewards
from fastmarl.core.connectors.rewards import Clip
from fastmarl.core.connectors.rllib_pieces import class_name
from fastmarl.core.errors import ConfigError
from fastmarl.core.inference.backends.dense_layers import is_watched, parts_of
from fastmarl.core.modules.base import RLModule, as_rl_module, copied
from fastmarl.core.modules.default import DefaultRLModule
from fastmarl.core.modules.model_config import DefaultModelConfig
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.spaces.plain import plain_space, space_from_plain
from fastmarl.core.states import check_keys, check_mapping, whole_number

SAVED = "policy"  # key in a runner's checkpoint, beside the runner's own state
VERSION = 1
KEYS = ("version", "options", "modules")
OF_MODULE = ("observation_space", "action_space", "class", "default", "connectors")
OF_DEFAULT = ("observation_space", "inference_only", "model_config", "layers")
ARGUMENTS: dict[type[ConnectorPiece], tuple[str, ...]] = {  # of bundled connectors; they have attributes of these names
    AgentIndicator: ("agents",),
    FlattenObservations: (),
    FrameStacking: ("num_frames",),
    GetActions: (),
    NormalizeAndClipActions: (),
    MeanStdFilter: ("de_mean_to_zero", "de_std_to_one", "clip_by_value", "update_stats"),
    PrevActionsPrevRewards: ("n_prev_actions", "n_prev_rewards"),
}
SWITCHES = ("update_stats",)  # arguments that may change at any time
BUNDLED = {kind.__name__: kind for kind in ARGUMENTS}


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Options of a runner that determine how observations, rewards and actions are processed; see `EnvRunnerConfig`.

    Args:
        t: Env steps made by all runners, for modules that explore by a schedule.
    """

    normalize_actions: bool
    clip_actions: bool
    keep_dtype: bool
    reward_scale: float
    clip_rewards: Clip
    lean_inference: bool
    inference_dtype: str
    t: int

    @classmethod
    def of(cls, config: EnvRunnerConfig, env_steps: int) -> "PolicyOptions":
        """Take the options of a runner that has made this number of env steps."""
        names = [field.name for field in fields(cls) if field.name != "t"]
        return cls(**{name: getattr(config, name) for name in names}, t=env_steps * config.num_env_runners)

    def for_config(self) -> dict[str, Any]:
        """Return the options of EnvRunnerConfig, without `t`."""
        return {name: value for name, value in asdict(self).items() if name != "t"}


@dataclass(frozen=True)
class ModuleParts:
    """Copies of a module and its connectors in their trained state."""

    module: RLModule
    connectors: ModuleConnectors


# Writing.


def described(options: PolicyOptions, modules: MultiRLModule, env_to_module: EnvToModule) -> dict[str, Any]:
    """Return plain data for a checkpoint, from which `parts_from()` makes policies."""
    return {
        "version": VERSION,
        "options": asdict(options),
        "modules": {
            module_id: _described(module, env_to_module.get(module_id)) for module_id, module in modules.items()
        },
    }


def _described(module: RLModule, connectors: ModuleConnectors | None) -> dict[str, Any]:
    assert module.observation_space is not None and module.action_space is not None
    is_default = type(module) is DefaultRLModule and not any(map(is_watched, parts_of(module)))
    return {
        "observation_space": plain_space(module.observation_space if connectors is None else connectors.sent_space),
        "action_space": plain_space(module.action_space),
        "class": type(module._net()).__name__,
        "default": _default(module) if is_default else None,
        "connectors": [_connector(each) for each in ([] if connectors is None else connectors.connectors)],
    }


def _default(module: RLModule) -> dict[str, Any]:
    """Describe a default network: the arguments to make it, and its layers for comparison."""
    assert module.observation_space is not None
    return {
        "observation_space": plain_space(module.observation_space),
        "inference_only": module.inference_only,
        "model_config": asdict(DefaultModelConfig.of(module.model_config)),
        "layers": _layers(module),
    }


def _layers(module: torch.nn.Module) -> list[list[str]]:
    return [[name, type(part).__name__] for name, part in module.named_modules()]


def _connector(connector: ConnectorPiece) -> dict[str, Any]:
    """Describe a connector; without arguments if it can't be made from them."""
    names = ARGUMENTS.get(type(connector))
    arguments = None if names is None else {name: getattr(connector, name) for name in names}
    if isinstance(connector, AgentIndicator):
        ids = [stored_key(agent_id) for agent_id in connector.agents]
        arguments = {"agents": ids} if arguments and len(set(ids)) == len(ids) else None
    return {"class": class_name(connector), "arguments": arguments}


# Reading.


def check_connectors(saved: Any, modules: Collection[str], env_to_module: EnvToModule) -> None:
    """Raise ConfigError if modules have connectors of other classes or arguments than those in `saved`.

    Args:
        saved: Result of `described()`; None if the checkpoint has none.
        modules: Ids of a runner's modules.
        env_to_module: Their connectors.
    """
    if saved is None:
        return
    check_keys("the saved policies", saved, KEYS)
    check_mapping("the saved modules", saved["modules"])
    for module_id in modules:
        if module_id in saved["modules"]:
            found = env_to_module.get(module_id)
            saved_here = _saved_connectors(module_id, saved["modules"][module_id])
            _check_alike(f"module {module_id!r} of the runner", saved_here, [] if found is None else found.connectors)


def _saved_connectors(module_id: str, entry: Any) -> list[Mapping[str, Any]]:
    check_keys(f"the saved data of module {module_id!r}", entry, OF_MODULE)
    saved = entry["connectors"]
    if not isinstance(saved, list):
        raise ConfigError(f"the connectors of module {module_id!r} must be a list, got {type(saved).__name__}")
    for each in saved:
        check_keys(f"a connector of module {module_id!r}", each, ("class", "arguments"))
        if each["arguments"] is not None:
            check_mapping(f"the arguments of a connector of module {module_id!r}", each["arguments"])
    return saved


def _check_alike(what: str, saved: Sequence[Mapping[str, Any]], given: Sequence[ConnectorPiece]) -> None:
    here = list(map(_connector, given))
    if len(here) != len(saved) or not all(map(_are_alike, saved, here)):
        raise ConfigError(f"{what} must have the connectors with which it was trained, {_texts(saved)}, got "
                          f"{_texts(here)}")  # fmt: skip


def _are_alike(saved: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compare classes, and arguments if both are known."""
    if saved["class"] != other["class"] or None in (saved["arguments"], other["arguments"]):
        return bool(saved["class"] == other["class"])
    return _lasting(saved) == _lasting(other)


def _lasting(connector: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, without those that may change at any time."""
    return {name: value for name, value in connector["arguments"].items() if name not in SWITCHES}


def _texts(connectors: Sequence[Mapping[str, Any]]) -> str:
    texts = []
    for each in connectors:
        arguments = ", ".join(f"{name}={value!r:.200}" for name, value in (each["arguments"] or {}).items())
        texts.append(f"{each['class']}({arguments})")
    return f"[{', '.join(texts)}]"


def parts_from(
    saved: Any,
    weights: Mapping[str, Any],
    learned: Mapping[str, Any],
    modules: Mapping[str, torch.nn.Module],
    connectors: Mapping[str, Sequence[ConnectorPiece]],
) -> tuple[PolicyOptions, dict[str, ModuleParts]]:
    """Make modules and connectors from a checkpoint.

    Args:
        saved: Result of `described()`.
        weights: Weights by module id.
        learned: States of connectors by option, as `EnvToModule.get_state()` returns them.
        modules: Objects for modules that are not fastmarl's own; they are copied.
        connectors: All connectors of modules that have some that are not fastmarl's own; they are copied.

    Returns:
        The options, and the parts by module id.

    Raises:
        ConfigError: If an object is missing, or does not fit the saved one; or `saved` is damaged.
    """
    check_keys("the saved policies", saved, KEYS)
    if whole_number("the version of policies", saved["version"]) != VERSION:
        raise ConfigError(f"policies were saved in version {saved['version']}, but this fastmarl reads {VERSION}")
    options = _options(saved["options"])
    check_mapping("the saved modules", saved["modules"])
    check_mapping("the saved weights", weights)
    for option, states in learned.items():
        check_mapping(f"the saved connectors of {option}", states)
    for name, given in (("modules", modules), ("connectors", connectors)):
        check_mapping(f"{name}=, by module id,", given)
        if unknown := [module_id for module_id in given if module_id not in saved["modules"]]:
            raise ConfigError(f"{name}= has {unknown}, which are not among the saved modules {list(saved['modules'])}")
    parts = {}
    for module_id, entry in saved["modules"].items():
        check_keys(f"the saved data of module {module_id!r}", entry, OF_MODULE)
        try:
            of_module = _made_connectors(module_id, entry, options, connectors.get(module_id))
            module = _made_module(module_id, entry, of_module, modules.get(module_id))
        except ConfigError:
            raise
        except (ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
            raise ConfigError(f"the saved data of module {module_id!r} is invalid: {error!r}") from error
        try:
            module.set_state(weights[module_id])
        except (ConfigError, KeyError) as error:
            raise ConfigError(f"module {module_id!r}: {error}") from error
        parts[module_id] = ModuleParts(module, of_module)
    for option, side in connectors_of(parts).sides().items():
        side.set_state(dict(learned[option]))
        for module_id, states in side.get_state().items():
            if lacking := [name for name in states if name not in learned[option].get(module_id, {})]:
                raise ConfigError(f"module {module_id!r}: the state of its connectors {lacking} was not saved")
    return options, parts


def connectors_of(parts: Mapping[str, ModuleParts]) -> EnvToModule:
    """Collect the connectors of these parts, by module id."""
    return EnvToModule({module_id: each.connectors for module_id, each in parts.items()})


def copied_parts(options: PolicyOptions, modules: MultiRLModule, env_to_module: EnvToModule) -> dict[str, ModuleParts]:
    """Copy a runner's modules to the CPU, and their connectors; return them by module id."""
    parts = {}
    for module_id, module in modules.items():
        own, given = copied(module).to("cpu"), env_to_module.get(module_id)
        space = module.observation_space if given is None else given.sent_space
        objects = () if given is None else given.connectors
        assert space is not None and module.action_space is not None
        parts[module_id] = ModuleParts(own, _bound(module_id, objects, space, module.action_space, options))
    before = env_to_module.sides()
    for option, side in connectors_of(parts).sides().items():
        side.set_state(before[option].get_state())
    return parts


def _bound(
    module_id: str, objects: Sequence[ConnectorPiece], observation_space: Any, action_space: Any, options: PolicyOptions
) -> ModuleConnectors:
    """Copy connectors and bind them to these spaces, without updating their statistics."""
    copies = copy.deepcopy(list(objects))
    for connector in copies:
        if getattr(connector, "update_stats", False):
            connector.update_stats = False  # type: ignore[attr-defined]
    return ModuleConnectors(module_id, copies, observation_space, action_space, keep_dtype=options.keep_dtype)


def _options(saved: Any) -> PolicyOptions:
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
    saved = _saved_connectors(module_id, entry)
    if given is None:
        names = [each["class"] for each in saved]
        unmade = [each["class"] for each in saved if each["arguments"] is None]
        if unmade:
            raise ConfigError(f"module {module_id!r} has the connectors {names}, of which {unmade} can't be made from "
                              f"the checkpoint, as they are not fastmarl's own, or for ids that differ in no text; "
                              f"pass connectors={{{module_id!r}: [...]}} with all {len(names)} of them")  # fmt: skip
        given = [_made_connector(each) for each in saved]
    elif not isinstance(given, (list, tuple)):
        raise ConfigError(f"connectors[{module_id!r}] must be a list of all connectors of the module, in order, got "
                          f"{type(given).__name__}")  # fmt: skip
    else:
        _check_alike(f"connectors[{module_id!r}]", saved, given)
    spaces = space_from_plain(entry["observation_space"]), space_from_plain(entry["action_space"])
    return _bound(module_id, given, *spaces, options)


def _made_connector(saved: Mapping[str, Any]) -> ConnectorPiece:
    try:
        return BUNDLED[saved["class"]](**saved["arguments"])
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{saved!r:.200} is not among fastmarl's connectors {list(BUNDLED)}: {error!r}") from error


def _made_module(
    module_id: str, entry: Mapping[str, Any], connectors: ModuleConnectors, given: torch.nn.Module | None
) -> RLModule:
    """Copy the given module, or make a default network."""
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
    if saved is None:
        raise ConfigError(f"module {module_id!r} is a {entry['class']}, not a default network of fastmarl, so "
                          f"the checkpoint has only its weights; in Python, pass modules={{{module_id!r}: ...}} with a "
                          f"module of that class, which gets these weights")  # fmt: skip
    check_keys(f"the default network {module_id!r}", saved, OF_DEFAULT)
    check_mapping("its model_config", saved["model_config"])
    with torch.random.fork_rng(devices=[]):  # its initial weights are replaced
        module = DefaultRLModule(
            space_from_plain(saved["observation_space"]),
            action_space,
            inference_only=saved["inference_only"],
            model_config=saved["model_config"],
        )
    if _layers(module) != saved["layers"]:
        raise ConfigError(f"module {module_id!r} is a default network whose layers were replaced, so it can't be made "
                          f"from the checkpoint; pass modules={{{module_id!r}: ...}} with such a module")  # fmt: skip
    return module

"""Description of the modules in a runner checkpoint, so that they can act without the runner.

It contains only plain data: spaces, options, and the names and arguments of fastmarl classes. User classes are named
but never imported; their objects must be passed again.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from fastmarl.core.checkpoint.folder import stored_key
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
from fastmarl.core.errors.states import check_keys, check_mapping
from fastmarl.core.modules.base import RLModule, copied
from fastmarl.core.modules.default import DefaultRLModule
from fastmarl.core.modules.epsilon_greedy import EpsilonGreedyRLModule
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.nets.dense_layers import is_watched, parts_of
from fastmarl.core.spaces.plain import plain_space

SAVED = "policy"  # key in a runner checkpoint, next to the runner state
VERSION = 1
KEYS = ("version", "options", "modules")
OF_MODULE = ("observation_space", "action_space", "class", "default", "connectors")
DEFAULT_CLASSES = {cls.__name__: cls for cls in (DefaultRLModule, EpsilonGreedyRLModule)}
OF_DEFAULT = ("observation_space", "inference_only", "model_config", "layers")
ARGUMENTS: dict[type[ConnectorPiece], tuple[str, ...]] = {  # for bundled connectors; attributes have the same names
    AgentIndicator: ("agents",),
    FlattenObservations: (),
    FrameStacking: ("num_frames",),
    GetActions: (),
    NormalizeAndClipActions: (),
    MeanStdFilter: ("de_mean_to_zero", "de_std_to_one", "clip_by_value", "update_stats"),
    PrevActionsPrevRewards: ("n_prev_actions", "n_prev_rewards"),
}
SWITCHES = ("update_stats",)  # arguments that can change at any time
BUNDLED = {kind.__name__: kind for kind in ARGUMENTS}


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Options of a runner that determine how observations, rewards and actions are processed; see `EnvRunnerConfig`.

    Args:
        t: Env steps of all runners, for exploration schedules.
    """

    normalize_actions: bool
    clip_actions: bool
    keep_float64: bool
    reward_scale: float
    clip_rewards: Clip
    native_inference: bool
    inference_dtype: str
    t: int

    @classmethod
    def of(cls, config: EnvRunnerConfig, env_steps: int) -> "PolicyOptions":
        """Return the options of a runner after this number of env steps."""
        names = [field.name for field in fields(cls) if field.name != "t"]
        return cls(**{name: getattr(config, name) for name in names}, t=env_steps * config.num_env_runners)

    def for_config(self) -> dict[str, Any]:
        """Return the options as arguments of EnvRunnerConfig, without `t`."""
        return {name: value for name, value in asdict(self).items() if name != "t"}


@dataclass(frozen=True)
class ModuleParts:
    """Copies of a trained module and its connectors."""

    module: RLModule
    connectors: ModuleConnectors


# Writing.


def described(options: PolicyOptions, modules: MultiRLModule, env_to_module: EnvToModule) -> dict[str, Any]:
    """Return plain data for a checkpoint, for use by `parts_from()`."""
    return {
        "version": VERSION,
        "options": asdict(options),
        "modules": {
            module_id: _described(module, env_to_module.get(module_id)) for module_id, module in modules.items()
        },
    }


def _described(module: RLModule, connectors: ModuleConnectors | None) -> dict[str, Any]:
    assert module.observation_space is not None and module.action_space is not None
    is_changed = any(map(is_watched, parts_of(module))) or any(
        callable(getattr(type(module), name, None)) for name in vars(module)
    )
    is_default = type(module) in DEFAULT_CLASSES.values() and not is_changed
    return {
        "observation_space": plain_space(module.observation_space if connectors is None else connectors.sent_space),
        "action_space": plain_space(module.action_space),
        "class": type(module._net()).__name__,
        "default": _default(module) if is_default else None,
        "connectors": [_connector(each) for each in ([] if connectors is None else connectors.connectors)],
    }


def _default(module: Any) -> dict[str, Any]:
    """Return the arguments that rebuild this default network, and its layers for comparison."""
    assert module.observation_space is not None
    return {
        "observation_space": plain_space(module.observation_space),
        "inference_only": module.inference_only,
        "model_config": asdict(module.config_cls.of(module.model_config)),
        "layers": layers_of(module),
    }


def layers_of(module: torch.nn.Module) -> list[list[str]]:
    """Return the name and class of each submodule."""
    return [[name, type(part).__name__] for name, part in module.named_modules()]


def _connector(connector: ConnectorPiece) -> dict[str, Any]:
    """Return the class and arguments of a connector; arguments are None if it cannot be rebuilt from them."""
    names = ARGUMENTS.get(type(connector))
    arguments = None if names is None else {name: getattr(connector, name) for name in names}
    if isinstance(connector, AgentIndicator):
        ids = [stored_key(agent_id) for agent_id in connector.agents]
        arguments = {"agents": ids} if arguments and len(set(ids)) == len(ids) else None
    return {"class": class_name(connector), "arguments": arguments}


# Reading.


def check_connectors(saved: Any, modules: Collection[str], env_to_module: EnvToModule) -> None:
    """Raise ConfigError if the connectors of modules differ in class or arguments from `saved`.

    Args:
        saved: Result of `described()`, or None if the checkpoint does not contain it.
        modules: Module ids of a runner.
        env_to_module: Connectors of these modules.
    """
    if saved is None:
        return
    check_keys("the saved policies", saved, KEYS)
    check_mapping("the saved modules", saved["modules"])
    for module_id in modules:
        if module_id in saved["modules"]:
            found = env_to_module.get(module_id)
            saved_here = saved_connectors(module_id, saved["modules"][module_id])
            check_alike(f"module {module_id!r} of the runner", saved_here, [] if found is None else found.connectors)


def saved_connectors(module_id: str, entry: Any) -> list[Mapping[str, Any]]:
    """Check the saved data of a module and return the descriptions of its connectors."""
    check_keys(f"the saved data of module {module_id!r}", entry, OF_MODULE)
    saved = entry["connectors"]
    if not isinstance(saved, list):
        raise ConfigError(f"the connectors of module {module_id!r} must be a list, got {type(saved).__name__}")
    for each in saved:
        check_keys(f"a connector of module {module_id!r}", each, ("class", "arguments"))
        if each["arguments"] is not None:
            check_mapping(f"the arguments of a connector of module {module_id!r}", each["arguments"])
    return saved


def check_alike(what: str, saved: Sequence[Mapping[str, Any]], given: Sequence[ConnectorPiece]) -> None:
    """Raise ConfigError if connectors differ from the saved ones in class or arguments."""
    here = list(map(_connector, given))
    if len(here) != len(saved) or not all(map(_are_alike, saved, here)):
        raise ConfigError(f"{what} must have the connectors it was trained with, {_texts(saved)}, got "
                          f"{_texts(here)}")  # fmt: skip


def _are_alike(saved: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the classes are equal and, if both are known, the arguments."""
    if saved["class"] != other["class"] or None in (saved["arguments"], other["arguments"]):
        return bool(saved["class"] == other["class"])
    return _lasting(saved) == _lasting(other)


def _lasting(connector: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments except for those that can change at any time."""
    return {name: value for name, value in connector["arguments"].items() if name not in SWITCHES}


def _texts(connectors: Sequence[Mapping[str, Any]]) -> str:
    texts = []
    for each in connectors:
        arguments = ", ".join(f"{name}={value!r:.200}" for name, value in (each["arguments"] or {}).items())
        texts.append(f"{each['class']}({arguments})")
    return f"[{', '.join(texts)}]"


def connectors_of(parts: Mapping[str, ModuleParts]) -> EnvToModule:
    """Return the connectors of each module."""
    return EnvToModule({module_id: each.connectors for module_id, each in parts.items()})


def copied_parts(options: PolicyOptions, modules: MultiRLModule, env_to_module: EnvToModule) -> dict[str, ModuleParts]:
    """Copy the modules of a runner and their connectors to the CPU; return module id -> copies."""
    parts = {}
    for module_id, module in modules.items():
        own, given = copied(module).to("cpu"), env_to_module.get(module_id)
        space = module.observation_space if given is None else given.sent_space
        objects = () if given is None else given.connectors
        assert space is not None and module.action_space is not None
        parts[module_id] = ModuleParts(own, bound_connectors(module_id, objects, space, module.action_space, options))
    before = env_to_module.sides()
    for option, side in connectors_of(parts).sides().items():
        side.set_state(before[option].get_state())
    return parts


def bound_connectors(
    module_id: str, objects: Sequence[ConnectorPiece], observation_space: Any, action_space: Any, options: PolicyOptions
) -> ModuleConnectors:
    """Copy connectors and bind them to these spaces, without updating their statistics."""
    copies = copy.deepcopy(list(objects))
    for connector in copies:
        if getattr(connector, "update_stats", False):
            connector.update_stats = False  # type: ignore[attr-defined]
    return ModuleConnectors(module_id, copies, observation_space, action_space, keep_float64=options.keep_float64)

"""The connectors of all modules of a runner, and their state."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import groupby
from typing import Any

from fastmarl.core.connectors.base import (
    ConnectorPiece,
    EnvToModuleConnector,
    GetActions,
    ModuleToEnvConnector,
    NormalizeAndClipActions,
)
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.connectors.rllib_pieces import EnvToModulePieces, ModuleToEnvPiece, class_name, is_rllib_piece
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_mapping
from fastmarl.core.objects.public import public

KINDS: dict[str, type[ConnectorPiece]] = {
    "env_to_module_connector": EnvToModuleConnector,
    "module_to_env_connector": ModuleToEnvConnector,
}
CONNECTOR_OPTIONS = tuple(KINDS)
State = dict[str, dict[str, Any]]  # module id -> name of the connector -> its state


@public("fastmarl.connectors")
class EnvToModule(Mapping[str, ModuleConnectors]):
    """Mapping of module id -> its connectors; gets, sets and merges the state of connectors of a given class.

    Args:
        of_modules: Module id -> its connectors.
        kind: Class of the connectors whose state is handled here.
    """

    def __init__(self, of_modules: Mapping[str, ModuleConnectors], kind: type[ConnectorPiece] = EnvToModuleConnector):
        self._of_modules = dict(of_modules)
        self._kind = kind

    def __getitem__(self, module_id: str) -> ModuleConnectors:
        return self._of_modules[module_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_modules)

    def __len__(self) -> int:
        return len(self._of_modules)

    def sides(self) -> "dict[str, EnvToModule]":
        """Return option -> this mapping, with a state that covers only the connectors given by that option."""
        return {option: EnvToModule(self, kind) for option, kind in KINDS.items()}

    def _named(self, module_id: str) -> dict[str, Any]:
        return named([each for each in self[module_id].connectors if isinstance(each, self._kind)])

    def put(self, module_id: str, connectors: ModuleConnectors | None) -> None:
        """Replace the connectors of the module `module_id`; None removes them."""
        self._of_modules.pop(module_id, None)
        if connectors is not None:
            self._of_modules[module_id] = connectors

    def get_state(self) -> State:
        """Return the learned state of the connectors; {} if they have none."""
        states = {
            module_id: {name: state for name, each in self._named(module_id).items() if (state := each.get_state())}
            for module_id in self
        }
        return {module_id: state for module_id, state in states.items() if state}

    def check_state(self, state: State) -> None:
        """Raise ConfigError if `state` names unknown modules or connectors, or belongs to different connectors."""
        check_mapping("the state of connectors", state)
        for module_id, each in state.items():
            check_mapping(f"the state of the connectors of {module_id!r}", each)
        known = self.get_state()
        unknown = [
            f"{module_id}/{name}"
            for module_id, each in state.items()
            for name in each.keys() - known.get(module_id, {})
        ]
        if unknown:
            there = [f"{module_id}/{name}" for module_id, each in known.items() for name in each]
            raise ConfigError(
                f"the state of connectors has unknown keys {sorted(unknown)}; the connectors with a state are {there}"
            )
        for module_id, each in state.items():
            connectors = self._named(module_id) if each else {}
            for name, given in each.items():
                connectors[name].check_state(given)

    def set_state(self, state: State) -> None:
        """Restore `state`: all or part of the result of `get_state()` or `merge_states()`.

        Raises:
            ConfigError: As in `check_state()`; nothing is changed then.
        """
        self.check_state(state)
        for module_id, each in state.items():
            connectors = self._named(module_id) if each else {}
            for name, given in each.items():
                connectors[name].set_state(given)

    def merge_states(self, states: Sequence[State]) -> State:
        """Merge the states of several runners by adding the counts of each runner since the last merge.

        Pass the result to `set_state()` of all of these runners. This object is not changed.

        Raises:
            ConfigError: If the states belong to different connectors.
        """
        merged: State = {}
        for module_id, each in self.get_state().items():
            connectors = self._named(module_id)
            lacking = [name for name in each if not all(name in state.get(module_id, {}) for state in states)]
            if lacking or not states:
                lacking = lacking or list(each)
                raise ConfigError(f"merge_states() needs at least one state, each with {lacking} of module "
                                  f"{module_id!r}")  # fmt: skip
            merged[module_id] = {
                name: connectors[name].merge_states([state[module_id][name] for state in states]) for name in each
            }
        return merged


def named(connectors: Sequence[Any]) -> dict[str, Any]:
    """Return name -> connector; names are class names, with the index appended if several share a class."""
    classes = [class_name(connector) for connector in connectors]
    return {
        name if classes.count(name) == 1 else f"{name}_{index}": connector
        for index, (name, connector) in enumerate(zip(classes, connectors, strict=True))
    }


def connectors_for(option: str, given: Any, module_id: str, env: Any, spaces: Any, device: str) -> list[ConnectorPiece]:
    """Return copies of the connectors given by `option` for a module, or call its function to create them.

    Args:
        option: "env_to_module_connector" or "module_to_env_connector".
        given: None, a connector, a list of them, a function that returns either, or a dict of module id -> any of
            these. The function is called as in RLlib: with `(env, spaces, device)` before the module, and with
            `(env, spaces)` after it.
        module_id: Id of the module.
        env, spaces, device: Arguments of the function; spaces are a dict of module id -> (observation space, action
            space).

    Raises:
        ConfigError: If an object is not a connector for this side of the module.
    """
    if isinstance(given, Mapping):
        given = given.get(module_id)
    if callable(given) and not isinstance(given, (ConnectorPiece, type)) and not is_rllib_piece(given):
        given = given(env, spaces, device) if option == "env_to_module_connector" else given(env, spaces)
    if given is None:
        return []
    where = f"{option} of module {module_id!r}"
    pieces = deepcopy(list(given) if isinstance(given, (list, tuple)) else [given])
    if option == "env_to_module_connector":
        groups = [(are_of_rllib, [*group]) for are_of_rllib, group in groupby(pieces, is_rllib_piece)]
        pieces = [
            piece for is_one, group in groups for piece in ([EnvToModulePieces(group, module_id)] if is_one else group)
        ]
        _check_kind(where, pieces, EnvToModuleConnector)
        return pieces
    pieces = [each() if each in (GetActions, NormalizeAndClipActions) else each for each in pieces]
    acts_at = next((index for index, each in enumerate(pieces) if isinstance(each, GetActions)), 0)
    pieces = [
        ModuleToEnvPiece(each, module_id, by_module=index < acts_at) if is_rllib_piece(each) else each
        for index, each in enumerate(pieces)
    ]
    _check_kind(where, pieces, ModuleToEnvConnector)
    return pieces


def _check_kind(where: str, pieces: Sequence[Any], kind: type[ConnectorPiece]) -> None:
    for piece in pieces:
        if not isinstance(piece, kind):
            hint = f"; pass an instance: {piece.__name__}()" if isinstance(piece, type) else ""
            raise ConfigError(f"{where}: expected fastmarl.connectors.{kind.__name__}, got {piece!r}{hint}")

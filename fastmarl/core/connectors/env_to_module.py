"""The connectors of all modules of a runner, and what they know."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from fastmarl.core.connectors.base import Connector
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.errors import ConfigError
from fastmarl.core.public import public
from fastmarl.core.states import check_mapping

State = dict[str, dict[str, Any]]  # module id -> connector's name -> its state


@public("fastmarl.connectors")
class EnvToModule(Mapping[str, ModuleConnectors]):
    """Module id -> its connectors, of modules that have any."""

    def __init__(self, of_modules: Mapping[str, ModuleConnectors]):
        self._of_modules = dict(of_modules)

    def __getitem__(self, module_id: str) -> ModuleConnectors:
        return self._of_modules[module_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_modules)

    def __len__(self) -> int:
        return len(self._of_modules)

    def put(self, module_id: str, connectors: ModuleConnectors | None) -> None:
        """Have these for a module, or none, from now on."""
        self._of_modules.pop(module_id, None)
        if connectors is not None:
            self._of_modules[module_id] = connectors

    def get_state(self) -> State:
        """What the connectors have got to know; {} if they know nothing."""
        states = {
            module_id: {name: state for name, each in named(module.connectors).items() if (state := each.get_state())}
            for module_id, module in self.items()
        }
        return {module_id: state for module_id, state in states.items() if state}

    def check_state(self, state: State) -> None:
        """Raises ConfigError if `state` names modules or connectors that are not here, or is one of others."""
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
            raise ConfigError(f"the state of connectors has {sorted(unknown)}, but those with a state here are {there}")
        for module_id, each in state.items():
            connectors = named(self[module_id].connectors)
            for name, given in each.items():
                connectors[name].check_state(given)

    def set_state(self, state: State) -> None:
        """Take all or some of what `get_state()` or `merge_states()` returned.

        Raises:
            ConfigError: see check_state(). Nothing was changed.
        """
        self.check_state(state)
        for module_id, each in state.items():
            connectors = named(self[module_id].connectors)
            for name, given in each.items():
                connectors[name].set_state(given)

    def merge_states(self, states: Sequence[State]) -> State:
        """One state, of those of several runners: what they have counted since they were last given one is added up.

        Give the result to all of them with `set_state()`. Nothing is changed here.

        Raises:
            ConfigError: they are states of other connectors.
        """
        merged: State = {}
        for module_id, each in self.get_state().items():
            connectors = named(self[module_id].connectors)
            lacking = [name for name in each if not all(name in state.get(module_id, {}) for state in states)]
            if lacking or not states:
                lacking = lacking or list(each)
                raise ConfigError(f"merge_states() needs at least one state, each with {lacking} of {module_id!r}")
            merged[module_id] = {
                name: connectors[name].merge_states([state[module_id][name] for state in states]) for name in each
            }
        return merged


def named(connectors: Sequence[Connector]) -> dict[str, Connector]:
    """Connectors by name: the class, and the index too if several are of that class."""
    classes = [type(connector).__name__ for connector in connectors]
    return {
        name if classes.count(name) == 1 else f"{name}_{index}": connector
        for index, (name, connector) in enumerate(zip(classes, connectors, strict=True))
    }


def connectors_for(given: Any, module_id: str, env: Any, spaces: Any, device: str) -> list[Connector]:
    """The connectors of one module, as `env_to_module_connector` has them: copies, or what its function makes.

    Args:
        given: None, a connector, a list of them, a function `(env, spaces, device)` that makes such, or a dict of any
            of these by module id.
        module_id: of the module.
        env, spaces, device: for the function; spaces are (observation space, action space) by module id.
    """
    if isinstance(given, Mapping):
        given = given.get(module_id)
    if callable(given) and not isinstance(given, (Connector, type)):
        given = given(env, spaces, device)
    if given is None:
        return []
    return deepcopy(list(given) if isinstance(given, (list, tuple)) else [given])

"""Components of the runner state, with the names used in RLlib, and their selection."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_mapping
from fastmarl.core.objects.rllib_classes import fetched

OF_MODULES = "rl_module"
ENV_STEPS = "num_env_steps_sampled_lifetime"
STATE_COMPONENTS = (
    OF_MODULES,
    "weights_seq_no",
    *CONNECTOR_OPTIONS,
    ENV_STEPS,
    "lifetime_counters",
    "num_resets",
    "random_state",
    "running_episodes",
)
Names = str | Collection[str] | None


def chosen_components(
    components: Names, not_components: Names, module_ids: Sequence[str]
) -> tuple[set[str], list[str]]:
    """Select components, and the modules of "rl_module", as RLlib does; warn about unknown names.

    The number of env steps is always included, because exploration schedules depend on it.

    Args:
        components: Names to include; None for all. Names such as "rl_module/p0" restrict the modules.
        not_components: Names to leave out.
        module_ids: Ids of the modules in the runner.

    Returns:
        The names of components, and the ids of modules.
    """
    wanted, wanted_modules = _split(components, module_ids)
    unwanted, unwanted_modules = _split(not_components, module_ids)
    if components is None:
        wanted = set(STATE_COMPONENTS)
    elif wanted_modules:
        wanted.add(OF_MODULES)
    wanted.add(ENV_STEPS)
    if components is None and OF_MODULES in unwanted:
        wanted.discard("weights_seq_no")
    modules = [name for name in module_ids if name in (wanted_modules or module_ids)]
    return wanted - unwanted, [name for name in modules if name not in unwanted_modules]


def _split(names: Names, module_ids: Sequence[str]) -> tuple[set[str], set[str]]:
    """Split names into complete components and modules of "rl_module"."""
    given = {names} if isinstance(names, str) else set(names or ())
    of_modules = {name: name.partition("/")[2] for name in given if str(name).startswith(f"{OF_MODULES}/")}
    known = set(STATE_COMPONENTS)
    unknown = [
        *(name for name in given - of_modules.keys() if name not in known),
        *(name for name, module in of_modules.items() if module not in module_ids),
    ]
    if unknown:
        there = [*STATE_COMPONENTS, *(f"{OF_MODULES}/{module}" for module in module_ids)]
        warnings.warn(f"unknown state components {sorted(unknown, key=str)}; choose from {there}", stacklevel=6)
    return given - of_modules.keys() - set(unknown), set(of_modules.values())


def known_parts(state: Any, module_ids: Collection[str]) -> dict[str, Any]:
    """Return the known components of a state, fetched from the Ray object store if necessary.

    Unknown components and modules cause a warning.

    Raises:
        ConfigError: If `state` is not a dict.
    """
    check_mapping("the state of a runner", state)
    known = {name: fetched(value) for name, value in state.items() if name in STATE_COMPONENTS}
    unknown = [repr(name) for name in state if name not in known]
    weights = known.get(OF_MODULES)
    if isinstance(weights, Mapping):
        unknown += [f"'{OF_MODULES}/{module_id}'" for module_id in weights if module_id not in module_ids]
        known[OF_MODULES] = {module_id: weights[module_id] for module_id in weights if module_id in module_ids}
    if unknown:
        warnings.warn(f"the runner has no {', '.join(unknown)}; these parts of the state are ignored", stacklevel=5)
    return known


def part_of(state: Mapping[str, Any], component: str) -> dict[str, Any]:
    """Return a single component of a state; weights include their sequence number.

    Raises:
        ConfigError: If the component is missing from the state.
    """
    name, _, module_id = component.partition("/")
    values = state.get(name)
    if module_id and name == OF_MODULES and isinstance(values, Mapping):
        values = {module_id: values[module_id]} if module_id in values else None
    elif module_id:
        values = None
    if values is None:
        raise ConfigError(f"it has no component {component!r}; its components are {list(state)}")
    number = {"weights_seq_no": state["weights_seq_no"]} if name == OF_MODULES and "weights_seq_no" in state else {}
    return {name: values, **number}

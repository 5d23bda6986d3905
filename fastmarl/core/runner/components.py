"""The parts of a runner's state that are meant by names such as "rl_module" or "rl_module/p0"."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fastmarl.core.errors import ConfigError

OF_MODULES = "rl_module"
STATE_COMPONENTS = (
    OF_MODULES,
    "weights_seq_no",
    "env_to_module_connector",
    "num_env_steps_sampled_lifetime",
    "lifetime_counters",
    "num_resets",
    "random_state",
    "running_episodes",
)
Names = str | Collection[str] | None


def chosen_components(
    components: Names, not_components: Names, module_ids: Sequence[str]
) -> tuple[set[str], list[str]]:
    """Which components, and which modules of "rl_module", as RLlib chooses them.

    Args:
        components: these; None: all. With "rl_module/p0" among them only such modules as are named so.
        not_components: but not these.

    Raises:
        ConfigError: there is no such component, or no such module.
    """
    wanted, wanted_modules = _split(components, module_ids)
    unwanted, unwanted_modules = _split(not_components, module_ids)
    if components is None:
        wanted = set(STATE_COMPONENTS)
    elif wanted_modules:
        wanted.add(OF_MODULES)
    modules = [name for name in module_ids if name in (wanted_modules or module_ids)]
    return wanted - unwanted, [name for name in modules if name not in unwanted_modules]


def _split(names: Names, module_ids: Sequence[str]) -> tuple[set[str], set[str]]:
    """(whole components, modules of "rl_module")"""
    given = {names} if isinstance(names, str) else set(names or ())
    of_modules = {name: name.partition("/")[2] for name in given if str(name).startswith(f"{OF_MODULES}/")}
    whole = given - of_modules.keys()
    unknown = [
        *(name for name in whole if name not in STATE_COMPONENTS),
        *(name for name, module in of_modules.items() if module not in module_ids),
    ]
    if unknown:
        there = [*STATE_COMPONENTS, *(f"{OF_MODULES}/{module}" for module in module_ids)]
        raise ConfigError(f"unknown state components {sorted(unknown, key=str)}; known are {there}")
    return whole, set(of_modules.values())

"""Checks of what environments declare and return; they raise an error at the first mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.resumable import supports_checkpoint
from fastmarl.core.errors import EnvCheckError, MultiAgentEnvError, shown
from fastmarl.core.errors.checks import in_order

RETURNED = {
    "reset": ("observations", "infos"),
    "step": ("observations", "rewards", "terminateds", "truncateds", "infos"),
}  # method -> names of its results
RESERVED_IDS = {
    "__all__": "the whole episode in terminateds and truncateds",
    "__common__": "all agents in infos",
    None: "no agent in batches",
}


def check_spaces(env: Any, env_index: int) -> None:
    """Check everything that can be checked without calling `reset()` or `step()`.

    Raises:
        EnvCheckError: If `possible_agents` is not a list of distinct, valid ids, an agent has no space, or the env
            claims to support checkpoints but does not.
    """
    try:
        supports_checkpoint(env)
        for agent in possible_agents_of(env):
            env_spaces(env, agent)
    except EnvCheckError as error:
        raise EnvCheckError(f"env {env_index} ({name_of(env)}): {error}") from error


def check_reset_result(result: Any, env_index: int) -> None:
    """Check that `reset()` returned a pair of dicts.

    Raises:
        MultiAgentEnvError: If the result is not a pair (observations, infos) of dicts.
    """
    check_dicts("reset", result, env_index, 0)


def check_step_result(result: Any, env_index: int, env_t: int) -> None:
    """Check that `step()` returned five dicts with valid flags.

    Raises:
        MultiAgentEnvError: If the result is not a tuple of five dicts, `__all__` is missing, or a flag is not a bool.
    """
    check_dicts("step", result, env_index, env_t)
    for _, agent, problem in flag_problems(result[2], result[3]):
        raise MultiAgentEnvError(env_index, agent, env_t, problem)


def possible_agents_of(env: Any) -> list[Any]:
    """Return the agent ids that the env declares as possible, ordered by `in_order()`; [] means any id.

    Raises:
        EnvCheckError: If they are neither a list of distinct hashable ids nor a set that can be sorted, or an id is
            reserved.
    """
    agents = getattr(env, "possible_agents", None)
    if agents is None:
        return []
    if isinstance(agents, str | dict) or not hasattr(agents, "__iter__"):
        raise EnvCheckError(f"expected a list of agent ids as possible_agents, got {agents!r:.200}")
    agents = in_order("possible_agents", agents, EnvCheckError)
    for agent in agents:
        try:
            hash(agent)
        except TypeError:
            raise EnvCheckError(f"agent ids must be hashable, got {agent!r:.200} in possible_agents") from None
        if agent in RESERVED_IDS:
            meaning = RESERVED_IDS[agent]
            raise EnvCheckError(f"possible_agents contains {agent!r}, which is reserved for {meaning}; use another id")
    if len(set(agents)) < len(agents):
        twice = next(agent for agent in agents if agents.count(agent) > 1)
        raise EnvCheckError(f"possible_agents contains {twice!r} more than once; give every agent a different id")
    return agents


def check_dicts(call: str, result: Any, env_index: int, env_t: int) -> None:
    """Raise MultiAgentEnvError if the result of `reset()` or `step()` is not a tuple with the right number of dicts."""
    names = RETURNED[call]
    if not isinstance(result, tuple) or len(result) != len(names):
        problem = f"expected ({', '.join(names)}) from {call}(), got {_what_came(call, result)}"
        raise MultiAgentEnvError(env_index, None, env_t, problem)
    for name, value in zip(names, result, strict=True):
        if not isinstance(value, dict):
            problem = (f"expected a dict keyed by agent id as {name} from {call}(), got {type(value).__name__} "
                       f"{shown(value)}")  # fmt: skip
            raise MultiAgentEnvError(env_index, None, env_t, problem)


def _what_came(call: str, result: Any) -> str:
    if call == "reset" and isinstance(result, dict):
        return "only observations, as in old Gym; also return infos, even if {}"
    if call == "step" and isinstance(result, tuple) and len(result) == 4:
        return "four values, as in old Gym; split dones into terminateds and truncateds"
    return f"{len(result)} values" if isinstance(result, tuple) else f"{type(result).__name__} {shown(result)}"


def flag_problems(terminateds: dict, truncateds: dict) -> Iterator[tuple[str, Any, str]]:
    """Yield (kind, agent, problem) for each flag that is not a bool, and for a missing `__all__`."""
    for name, flags in (("terminateds", terminateds), ("truncateds", truncateds)):
        for agent, flag in flags.items():
            if not isinstance(flag, bool | np.bool_):
                yield "flag", agent, f"expected True or False in {name}, got {type(flag).__name__} {shown(flag)}"
    if "__all__" not in terminateds:
        problem = (f"expected the key '__all__' in terminateds, which says whether the episode is over; got the keys "
                   f"{list(terminateds)!r:.200}")  # fmt: skip
        yield "__all__", None, problem


def class_of(env: Any) -> tuple[str, str]:
    """Return the module and class name of an env."""
    bare = type(getattr(env, "unwrapped", env))
    return bare.__module__, bare.__qualname__


def name_of(env: Any) -> str:
    """Return the name from the env's metadata, as set by PettingZoo envs, or else its class name."""
    bare = getattr(env, "unwrapped", env)
    metadata = getattr(bare, "metadata", None)
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return str(name or type(bare).__name__)

"""What an environment says of itself, and its first results, looked at closely: one clear error for each mistake."""

from collections.abc import Hashable
from typing import Any

import numpy as np

from fastmarl.envs.base import env_spaces
from fastmarl.errors import EnvCheckError, MultiAgentEnvError

STEP_PARTS = ("observations", "rewards", "terminateds", "truncateds", "infos")


def check_spaces(env: Any, env_index: int) -> None:
    """Check what can be checked without reset() and step().

    Raises:
        EnvCheckError: `possible_agents` is no list of different hashables, or an agent lacks a space.
    """
    agents = getattr(env, "possible_agents", None)
    if agents is None:
        return
    where = f"env {env_index} ({type(getattr(env, 'unwrapped', env)).__name__})"
    if isinstance(agents, str) or not hasattr(agents, "__iter__"):
        raise EnvCheckError(f"{where}: expected a list of agent ids as possible_agents, got {agents!r}")
    unhashable = [agent for agent in agents if not isinstance(agent, Hashable)]
    if unhashable:
        raise EnvCheckError(f"{where}: agent ids must be hashable, got {unhashable[0]!r} in possible_agents")
    if len(set(agents)) < len(list(agents)):
        raise EnvCheckError(f"{where}: possible_agents {list(agents)} names an agent twice")
    for agent in agents:
        env_spaces(env, agent)


def check_reset_result(result: Any, env_index: int) -> None:
    """Check the form of what reset() returned.

    Raises:
        MultiAgentEnvError: it is no pair (observations, infos) of dicts.
    """
    if isinstance(result, dict):
        got = "observations alone, as in old Gym; add infos"
        raise _form_error(env_index, 0, "reset", "(observations, infos)", got)
    _check_dicts(result, ("observations", "infos"), env_index, 0, "reset")


def check_step_result(result: Any, env_index: int, env_t: int) -> None:
    """Check the form of what step() returned.

    Raises:
        MultiAgentEnvError: it is no tuple of five dicts, `__all__` is missing, or a flag is no bool.
    """
    if isinstance(result, tuple) and len(result) == 4:
        expected = f"({', '.join(STEP_PARTS)})"
        raise _form_error(env_index, env_t, "step", expected, "four values, as in old Gym; split done into "
                          "terminateds and truncateds")  # fmt: skip
    _check_dicts(result, STEP_PARTS, env_index, env_t, "step")
    for name, flags in (("terminateds", result[2]), ("truncateds", result[3])):
        for agent, flag in flags.items():
            if not isinstance(flag, (bool, np.bool_)):
                problem = f"expected True or False in {name}, got {flag!r}"
                raise MultiAgentEnvError(env_index, agent, env_t, problem)
    if "__all__" not in result[2]:
        problem = f"expected the key '__all__' in terminateds, which says whether the episode is over; got {result[2]}"
        raise MultiAgentEnvError(env_index, None, env_t, problem)


def _check_dicts(result: Any, parts: tuple[str, ...], env_index: int, env_t: int, call: str) -> None:
    expected = f"({', '.join(parts)})"
    if not isinstance(result, tuple) or len(result) != len(parts):
        got = f"{len(result)} values" if isinstance(result, tuple) else f"{type(result).__name__} {result!r:.200}"
        raise _form_error(env_index, env_t, call, expected, got)
    for name, part in zip(parts, result, strict=True):
        if not isinstance(part, dict):
            got = f"{type(part).__name__} {part!r:.200}"
            raise _form_error(env_index, env_t, call, f"a dict by agent id as {name}", got)


def _form_error(env_index: int, env_t: int, call: str, expected: str, got: str) -> MultiAgentEnvError:
    return MultiAgentEnvError(env_index, None, env_t, f"expected {expected} from {call}(), got {got}")

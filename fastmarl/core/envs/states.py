"""Lookup of an env's global state, `env.state()`, and its space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from fastmarl.core.errors import EnvCheckError
from fastmarl.core.spaces.layout import ARRAY_SPACES

UNIMPLEMENTED = "pettingzoo.utils.env"  # module of the PettingZoo base classes, whose state() only raises an error


class NoStateError(EnvCheckError):
    """`record_env_state` is set, but the env has no `state()` that returns a single array."""


def has_state(env: Any) -> bool:
    """Return True if the env implements `state()`."""
    methods = [getattr(each, "state", None) for each in (env, getattr(env, "unwrapped", env))]
    return all(map(callable, methods)) and all(getattr(m, "__module__", "") != UNIMPLEMENTED for m in methods)


def state_space_of(env: Any, env_index: int) -> gym.Space | None:
    bare = getattr(env, "unwrapped", env)
    name = type(bare).__name__
    if not has_state(env):
        raise NoStateError(f"record_env_state=True needs a method state() that returns the global state as an array, "
                           f"but env {env_index} ({name}) has none; add one, or leave out the option")  # fmt: skip
    space = next((s for each in (env, bare) if (s := getattr(each, "state_space", None)) is not None), None)
    if space is not None and not isinstance(space, ARRAY_SPACES):
        raise NoStateError(f"record_env_state=True needs a state() that returns a single array, but the state_space of "
                           f"env {env_index} ({name}) is {space!r:.200}; let state() return one array")  # fmt: skip
    return space

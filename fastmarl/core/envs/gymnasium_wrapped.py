"""Adapter for multi-agent envs in Gymnasium wrappers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.base import space_of
from fastmarl.core.envs.gymnasium_joint import OF_MULTI_AGENT_ENVS
from fastmarl.core.envs.resumable import ResumableAdapter
from fastmarl.core.objects.public import public


@public("fastmarl.envs")
class WrappedMultiAgentEnv(ResumableAdapter):
    """Adapts a multi-agent env in Gymnasium wrappers, as added by `gym.make()`, which hide the env's attributes.

    An agent's spaces are taken from the outermost wrapper that defines spaces, otherwise from the env. If a wrapper
    such as TimeLimit returns a bool instead of a dict of flags, it applies to all agents.

    Args:
        env: The outermost wrapper; `unwrapped` is the innermost env.
    """

    def __init__(self, env: gym.Wrapper):
        self.env = env
        layers = list(_layers(env))
        self._inside = next(filter(_is_multi_agent, layers))
        self._with_spaces = {
            kind: next((layer for layer in layers[:-1] if _has_own_space(layer, kind)), self._inside)
            for kind in ("observation", "action")
        }

    @staticmethod
    def adapts(env: Any) -> bool:
        """Return True if `env` is a wrapper around a multi-agent env, but not multi-agent itself."""
        return isinstance(env, gym.Wrapper) and not _is_multi_agent(env) and any(map(_is_multi_agent, _layers(env)))

    @property
    def possible_agents(self) -> list[Any]:
        """The inner env's `possible_agents`, or []."""
        return getattr(self._inside, "possible_agents", [])

    @property
    def agents(self) -> list[Any]:
        """The inner env's `agents`, or []."""
        return getattr(self._inside, "agents", [])

    @property
    def observation_spaces(self) -> Any:
        """Agent id -> space, from the layer that declares the spaces; None if it declares them in another form."""
        return getattr(self._with_spaces["observation"], "observation_spaces", None)

    @property
    def action_spaces(self) -> Any:
        return getattr(self._with_spaces["action"], "action_spaces", None)

    @property
    def observation_space(self) -> Any:
        return getattr(self._with_spaces["observation"], "observation_space", None)

    @property
    def action_space(self) -> Any:
        return getattr(self._with_spaces["action"], "action_space", None)

    @property
    def state_space(self) -> gym.Space | None:
        """Space of `state()`, if the env has one."""
        return getattr(self._inside, "state_space", None)

    def state(self) -> np.ndarray:
        """Return the global state for centralised critics, if the env has a `state()`."""
        return self._inside.state()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Step the outermost wrapper with `actions`; convert flags to dicts."""
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        return obs, rewards, _in_dict(terminateds), _in_dict(truncateds), infos

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return space_of(self._with_spaces["observation"], "observation", agent_id)

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return space_of(self._with_spaces["action"], "action", agent_id)


def _in_dict(flags: Any) -> Any:
    return {"__all__": bool(flags)} if isinstance(flags, bool | np.bool_) else flags


def _layers(env: Any) -> Iterator[Any]:
    """Yield the wrappers from the outside in, followed by the env."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _is_multi_agent(layer: Any) -> bool:
    return any(hasattr(layer, name) for name in OF_MULTI_AGENT_ENVS)


def _has_own_space(wrapper: gym.Wrapper, kind: str) -> bool:
    """Return True if a wrapper declares per-agent spaces or changes the space of the env inside it."""
    if hasattr(wrapper, f"{kind}_spaces") or hasattr(wrapper, f"get_{kind}_space"):
        return True
    own, inside = (getattr(layer, f"{kind}_space", None) for layer in (wrapper, wrapper.env))
    return own is not inside and own != inside

"""The supported kinds of envs and their adapters."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from fastmarl.core.envs.aec import AECPettingZooEnv
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.envs.base import MultiAgentEnv
from fastmarl.core.envs.gymnasium_joint import OF_MULTI_AGENT_ENVS, DictGymnasiumEnv, TupleGymnasiumEnv
from fastmarl.core.envs.gymnasium_vector import VectorGymnasiumEnv
from fastmarl.core.envs.gymnasium_wrapped import WrappedMultiAgentEnv
from fastmarl.core.envs.openspiel import OpenSpielEnv
from fastmarl.core.envs.pettingzoo import ParallelPettingZooEnv
from fastmarl.core.envs.pufferlib import PufferLibEnv
from fastmarl.core.envs.vmas import VmasEnv
from fastmarl.core.errors import EnvCheckError

ACCEPTED = (
    "a fastmarl.MultiAgentEnv, RLlib's MultiAgentEnv, one of these in Gymnasium's wrappers, a PettingZoo env, an "
    "OpenSpiel game, a Gymnasium env with its agents in Tuple or Dict spaces, or a batch of envs: a fastmarl.ArrayEnv, "
    "a Gymnasium VectorEnv, a vmas world, a PufferLib env"
)
# The first matching adapter is used.
ADAPTERS = (
    AECPettingZooEnv,
    ParallelPettingZooEnv,
    OpenSpielEnv,
    WrappedMultiAgentEnv,
    TupleGymnasiumEnv,
    DictGymnasiumEnv,
    VectorGymnasiumEnv,
    VmasEnv,
    PufferLibEnv,
)


def as_multi_agent_env(env: Any) -> Any:
    """Return a multi-agent env or ArrayEnv unchanged, or wrap any other env in its adapter (see ADAPTERS).

    To avoid importing Ray, RLlib's MultiAgentEnv and custom envs are recognised by their attributes: `reset()`,
    `step()`, and one of `possible_agents`, `get_observation_space()`, `observation_spaces` or, if the env is not a
    gymnasium.Env, `observation_space`.

    Raises:
        EnvCheckError: If `env` is anything else.
    """
    if isinstance(env, (MultiAgentEnv, ArrayEnv)):
        return env
    for adapter in ADAPTERS:
        if adapter.adapts(env):
            return adapter(env)
    if not (callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))):
        raise EnvCheckError(f"expected {ACCEPTED}, got {env!r:.200}, which has no reset() and step()")
    if any(hasattr(env, name) for name in OF_MULTI_AGENT_ENVS):
        return env
    if hasattr(env, "observation_space") and not isinstance(env, gym.Env):
        return env
    name = type(env).__name__
    raise EnvCheckError(f"expected {ACCEPTED}, got {name}, a single-agent environment; if it has several agents, list "
                        f"their ids in its attribute possible_agents")  # fmt: skip

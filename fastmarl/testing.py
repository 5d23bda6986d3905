"""The kit to run on an environment of your own, before training does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.config import EnvRunnerConfig
from fastmarl.envs.base import as_multi_agent_env, env_spaces
from fastmarl.envs.registry import env_creator
from fastmarl.episodes import MultiAgentEpisode
from fastmarl.errors import EnvCheckError
from fastmarl.runner import MultiAgentEnvRunner
from fastmarl.spaces import flatten_struct

ENVS = 2  # copies, stepped in turn: what they share by mistake shows
STEPS_PER_CALL = 50


@dataclass(frozen=True)
class EnvReport:
    """What `check_env` saw. `notes` are no errors, but often not what was meant."""

    agents: tuple[Any, ...]
    env_steps: int
    agent_steps: int
    episodes: int
    notes: tuple[str, ...]


class SpacesOnly(torch.nn.Module):
    """Stands where a module is needed, for agents that act at random."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space):
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space

    def forward(self, batch: dict) -> dict:
        raise NotImplementedError


def check_env(env: Any, env_config: Mapping[str, Any] | None = None, *, steps: int = 1000) -> EnvReport:
    """Sample two copies of an environment with random actions, just as a runner does, and look at what they return.

    Args:
        env, env_config: as in `EnvRunnerConfig`. Agents may come late, die and be rewarded late; all options that a
            runner has for that are on.
        steps: env steps to make, over both copies.

    Raises:
        FastmarlError: the first mistake: env, agent and step, what was expected, what came, and the way out.
    """
    config = _random_config(env, dict(env_config or {}))
    runner = MultiAgentEnvRunner(config)
    try:
        notes: dict[str, None] = {}
        made = 0
        while made < steps:
            for chunk in runner.sample(num_timesteps=STEPS_PER_CALL, random_actions=True):
                notes.update(dict.fromkeys(_unlikely_values(chunk)))
            made += STEPS_PER_CALL
        return _report(runner, notes)
    finally:
        runner.stop()


def _random_config(env: Any, env_config: dict) -> EnvRunnerConfig:
    """A config with one module for each pair of spaces among the agents."""
    probe = as_multi_agent_env(env_creator(env)(env_config))
    try:
        agents = list(getattr(probe, "possible_agents", None) or [])
        spaces = {agent: env_spaces(probe, agent) for agent in agents}
    finally:
        if hasattr(probe, "close"):
            probe.close()
    if not agents:
        raise EnvCheckError(f"{type(probe).__name__} names no possible_agents; list there all agents it can have")
    different: list[tuple] = []
    for pair in spaces.values():
        if pair not in different:
            different.append(pair)
    return EnvRunnerConfig(
        env=env,
        env_config=env_config,
        num_envs_per_env_runner=ENVS,
        policies={f"spaces_{i}": SpacesOnly(*pair) for i, pair in enumerate(different)},
        policy_mapping_fn=lambda agent, *args, **kwargs: f"spaces_{different.index(spaces[agent])}",
        post_death="accumulate",
        respawn=True,
        seed=0,
    )


def _report(runner: MultiAgentEnvRunner, notes: dict[str, None]) -> EnvReport:
    metrics = runner.get_metrics()
    all_notes = list(notes)
    if metrics["num_episodes"] == 0:
        all_notes.append(
            f"no episode came to an end in {metrics['num_env_steps_sampled'] // ENVS} steps; is that meant?"
        )
    if metrics["unattributed_reward"]:
        all_notes.append(f"rewards of {metrics['unattributed_reward']:g} in all belong to no action of their agent")
    actions = metrics["num_agent_steps_sampled"]
    return EnvReport(
        agents=tuple(actions),
        env_steps=metrics["num_env_steps_sampled"],
        agent_steps=sum(actions.values()),
        episodes=metrics["num_episodes"],
        notes=tuple(all_notes),
    )


def _unlikely_values(chunk: MultiAgentEpisode) -> list[str]:
    """One note for each agent and leaf of its observations with NaN or values out of bounds."""
    notes = []
    for agent, steps in chunk.agent_episodes.items():
        leaves = dict(flatten_struct(steps.get_observations()))
        assert steps.observation_space is not None
        for path, space in _boxes(steps.observation_space, ()):
            values, where = np.asarray(leaves[path]), f"agent {agent!r}: observation{''.join(f'[{p!r}]' for p in path)}"
            if np.isnan(values).any():
                notes.append(f"{where} holds NaN")
            elif (values < space.low).any() or (values > space.high).any():
                notes.append(f"{where} goes out of the bounds of its space")
    return notes


def _boxes(space: gym.Space, path: tuple) -> list[tuple[tuple, gym.spaces.Box]]:
    if isinstance(space, gym.spaces.Box):
        return [(path, space)]
    if isinstance(space, gym.spaces.Dict):
        return [box for key, part in space.spaces.items() for box in _boxes(part, (*path, key))]
    if isinstance(space, gym.spaces.Tuple):
        return [box for i, part in enumerate(space.spaces) for box in _boxes(part, (*path, i))]
    return []

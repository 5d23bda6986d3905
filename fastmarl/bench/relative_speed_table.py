"""Default table of `fastmarl bench relative-speed`: a real env, a zero-cost env, and an env with many agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.envs.base import MultiAgentEnv

SPREAD_ENVS = (1, 8, 32)
READY_AGENTS_AND_ENVS = ((2, 1), (2, 16), (8, 16), (32, 16), (128, 8))
EPISODE_LENGTH = 100

Step = tuple[dict, dict, dict, dict, dict]


class ReadyDicts(MultiAgentEnv):
    """An env that returns ready-made dicts, so that all time is spent in the sampler.

    Args:
        config: "agents": number of agents (2); "size": observation size (18); "actions": size of the Discrete action
            space (5).
    """

    def __init__(self, config: dict[str, Any] | None = None):
        super().__init__()
        options = {"agents": 2, "size": 18, "actions": 5, **(config or {})}
        self.possible_agents = [f"agent_{i}" for i in range(options["agents"])]
        shape = (options["size"],)
        box = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, box)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(options["actions"]))
        rng = np.random.default_rng(0)
        self._obs = {agent: rng.standard_normal(shape, np.float32) for agent in self.possible_agents}
        self._infos: dict[str, dict] = {agent: {} for agent in self.possible_agents}
        rewards = dict.fromkeys(self.possible_agents, 1.0)
        go_on = {**dict.fromkeys(self.possible_agents, False), "__all__": False}
        over = {**dict.fromkeys(self.possible_agents, True), "__all__": True}
        self._step: Step = (self._obs, rewards, go_on, go_on, self._infos)
        self._last_step: Step = (self._obs, rewards, go_on, over, self._infos)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._t = 0
        return self._obs, self._infos

    def step(self, actions: dict) -> Step:
        self._t += 1
        return self._last_step if self._t == EPISODE_LENGTH else self._step


def standard_configs(**options: Any) -> list[tuple[str, EnvRunnerConfig]]:
    """Return (name, config) for each row of the table; `options` are added to all configs."""
    rows: list[tuple[str, dict[str, Any]]] = [
        ("mpe2.simple_spread_v3", {"env": "mpe2.simple_spread_v3", "num_envs_per_env_runner": envs})
        for envs in SPREAD_ENVS
    ]
    for agents, envs in READY_AGENTS_AND_ENVS:
        config = {"env": ReadyDicts, "env_config": {"agents": agents}, "num_envs_per_env_runner": envs}
        rows.append(("ready dicts", config))
    rows.append(("magent2.battle_v4", {"env": "magent2.battle_v4"}))
    return [(name, EnvRunnerConfig(**config, **options)) for name, config in rows]

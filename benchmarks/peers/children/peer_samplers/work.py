"""The work of all samplers: the environments, the network, and its amount."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mpe2 import simple_spread_v3
from pettingzoo import ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

AGENTS = 3
MAX_CYCLES = 25
OBSERVATION_SIZE = 18
ACTIONS = 5
HIDDENS = (64, 64)
MODEL_CONFIG: dict[str, Any] = {"fcnet_hiddens": [*HIDDENS], "fcnet_activation": "tanh", "vf_share_layers": True}
TICKS = 64  # steps of every env per call of collect()

torch.set_num_threads(1)  # for all samplers: the networks are too small for more


@dataclass(frozen=True)
class Setting:
    """The work to sample."""

    env: str
    """"spread": mpe2's simple_spread_v3; "free": an env of the same spaces that costs nothing."""
    num_envs: int
    num_workers: int
    """Processes that step them; 0 steps all in this process."""

    @property
    def envs_per_worker(self) -> int:
        return self.num_envs // max(1, self.num_workers)


@dataclass
class Sampler:
    """A sampler that is set up and ready to run."""

    collect: Callable[[], int]
    """Records about TICKS steps of every env, with actions, log-probabilities and values; returns the number of agent
    steps (actions of single agents)."""
    config: dict[str, Any]
    """Description of the setup, in the sampler's own terms."""
    close: Callable[[], object] = field(default=lambda: None)


class FreeEnv(ParallelEnv):
    """simple_spread's agents, spaces and episode length, with ready-made dicts."""

    metadata = {"name": "free", "render_modes": []}  # noqa: RUF012  as PettingZoo has it
    render_mode = None

    def __init__(self) -> None:
        with_spaces = spread()
        self.possible_agents = list(with_spaces.possible_agents)
        self.agents: list[str] = []
        self._spaces = {
            agent: (with_spaces.observation_space(agent), with_spaces.action_space(agent))
            for agent in self.possible_agents
        }
        rng = np.random.default_rng(0)
        self._observations = {
            agent: rng.standard_normal(OBSERVATION_SIZE).astype(np.float32) for agent in self.possible_agents
        }

    def observation_space(self, agent: str) -> Any:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> Any:
        return self._spaces[agent][1]

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.agents = list(self.possible_agents)
        self._t = 0
        return dict(self._observations), {agent: {} for agent in self.agents}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        self._t += 1
        ids = self.possible_agents
        is_over = self._t >= MAX_CYCLES
        if is_over:
            self.agents = []
        return (
            dict(self._observations),
            dict.fromkeys(ids, -1.0),
            dict.fromkeys(ids, False),
            dict.fromkeys(ids, is_over),
            {agent: {} for agent in ids},
        )


def spread() -> Any:
    return simple_spread_v3.parallel_env(N=AGENTS, max_cycles=MAX_CYCLES, continuous_actions=False)


def make_env(kind: str, *_: Any) -> Any:
    """Return a ParallelEnv; further arguments are ignored, since some libraries pass a config."""
    return FreeEnv() if kind == "free" else spread()


def make_aec_env(kind: str) -> Any:
    """Return the turn-based version of the environment."""
    if kind == "free":
        return parallel_to_aec(FreeEnv())
    return simple_spread_v3.env(N=AGENTS, max_cycles=MAX_CYCLES, continuous_actions=False)


class Net(torch.nn.Module):
    """A shared MLP with two heads: observations [B, 18] -> logits [B, 5], values [B]."""

    def __init__(self) -> None:
        super().__init__()
        first, second = HIDDENS
        self.trunk = torch.nn.Sequential(
            torch.nn.Linear(OBSERVATION_SIZE, first), torch.nn.Tanh(), torch.nn.Linear(first, second), torch.nn.Tanh()
        )
        self.policy = torch.nn.Linear(second, ACTIONS)
        self.value = torch.nn.Linear(second, 1)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.trunk(observations)
        return self.policy(features), self.value(features).squeeze(-1)


class Record:
    """The record of TICKS steps that a training loop keeps: tensors [T, row, ...]; a row is one agent of one env."""

    def __init__(self, rows: int) -> None:
        self.observations = torch.zeros(TICKS, rows, OBSERVATION_SIZE)
        self.actions = torch.zeros(TICKS, rows, dtype=torch.int64)
        self.logp, self.values, self.rewards, self.terminated, self.truncated = torch.zeros(5, TICKS, rows)

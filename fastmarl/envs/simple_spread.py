"""Agents that spread over landmarks, like `mpe2.simple_spread_v3`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from fastmarl.core.envs.arrays import StepArrays
from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.envs.particles import ParticleWorld, Positions, collide, move, observe, push

SENSITIVITY = 5.0
RADIUS = 0.15


@public("fastmarl.envs")
class SimpleSpread(ParticleWorld):
    """Agents are rewarded for covering landmarks and penalised for collisions.

    There are as many landmarks as agents. Dynamics, spaces, rewards and truncation match `mpe2.simple_spread_v3` with
    the same options. Its other options (curriculum, partial observations, termination on success, benchmark data,
    rendering) are not supported.

    Args:
        num_envs: Number of copies in the batch, E.
        N: Number of agents, named "agent_0", ..., and of landmarks.
        local_ratio: Weight of the agent-specific collision penalty in the reward; the rest is the weight of the shared
            reward.
        max_cycles: Number of env steps after which an episode is truncated.
        continuous_actions: If True, actions are float32 [5] in 0 ... 1, whose elements 1 to 4 push to the left, right,
            down and up; if False, an action is the index of such an element, or 0 for no push.

    Attributes:
        positions, velocities: float64 [E, N, 2] of the agents. Writable.
        landmarks: Positions of the landmarks, float64 [E, N, 2]. Writable.

    Raises:
        ConfigError: If `N` or `max_cycles` is below 1, or `local_ratio` is not between 0 and 1.
    """

    landmarks = Positions(of_agents=False)

    def __init__(
        self,
        num_envs: int,
        N: int = 3,
        local_ratio: float = 0.5,
        max_cycles: int = 25,
        continuous_actions: bool = False,
    ):
        if N < 1 or max_cycles < 1 or not 0.0 <= local_ratio <= 1.0:
            raise ConfigError(f"N and max_cycles must be at least 1 and local_ratio between 0 and 1, got {N}, "
                              f"{max_cycles}, {local_ratio}")  # fmt: skip
        agents = {"agents": [f"agent_{i}" for i in range(N)]}
        n_numbers = {"agents": 4 + 2 * N + 4 * (N - 1)}
        super().__init__(num_envs, agents, n_numbers, 2 * N * [1.0], N, continuous_actions)
        self._rules = float(local_ratio), max_cycles, np.full(N, RADIUS)

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        group = out.groups["agents"]
        _step(
            actions["agents"], self._rules, self._force, self._bodies, self.velocities, self._t, group.obs,
            group.rewards, out.truncated,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _step(actions, rules, force_A2, position_EB2, velocity_EA2, t_E, obs_EAK, reward_EA, truncated_E):
    """Step all envs.

    Args:
        actions: int64 [E, A], or float32 [E, A, 5].
        rules: (local ratio, steps of an episode, radius of each agent).
        force_A2: Scratch space for the forces in a single env.
        obs_EAK, reward_EA, truncated_E: Output arrays of the caller; the other arrays belong to the batch.
    """
    local_ratio, max_cycles, radius_A = rules
    for e in range(len(t_E)):
        push(e, actions, SENSITIVITY, force_A2)
        collide(e, radius_A, position_EB2, force_A2)
        move(e, force_A2, position_EB2, velocity_EA2)
        observe(e, 0, len(force_A2), position_EB2, velocity_EA2, obs_EAK)
        _pay(e, local_ratio, position_EB2, reward_EA)
        t_E[e] += 1
        truncated_E[e] = t_E[e] >= max_cycles


@njit(cache=True, nogil=True)
def _pay(e, local_ratio, position_EB2, reward_EA):
    n_agents = reward_EA.shape[1]
    of_all = 0.0
    for landmark in range(n_agents, position_EB2.shape[1]):
        nearest = math.inf
        for a in range(n_agents):
            x = position_EB2[e, a, 0] - position_EB2[e, landmark, 0]
            y = position_EB2[e, a, 1] - position_EB2[e, landmark, 1]
            nearest = min(nearest, math.sqrt(x * x + y * y))
        of_all -= nearest
    for a in range(n_agents):
        own = 0.0
        for b in range(n_agents):
            x = position_EB2[e, a, 0] - position_EB2[e, b, 0]
            y = position_EB2[e, a, 1] - position_EB2[e, b, 1]
            if a != b and math.sqrt(x * x + y * y) < RADIUS + RADIUS:
                own -= 1.0
        reward_EA[e, a] = of_all * (1 - local_ratio) + own * local_ratio

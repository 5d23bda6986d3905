"""Agents that spread over landmarks: `mpe2.simple_spread_v3`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numba import njit

from fastmarl.core.envs.arrays import StepArrays
from fastmarl.core.errors import ConfigError
from fastmarl.core.public import public
from fastmarl.envs.own_arrays import EnvOfArrays
from fastmarl.envs.particles import CONTACT_FORCE, N_MOVES, move, overlap, push
from fastmarl.envs.streams import new_streams, seed_streams, uniform

SENSITIVITY = 5.0
TOUCHING = 0.15 + 0.15  # two agents' sizes


@public("fastmarl.envs")
class SimpleSpread(EnvOfArrays):
    """As many landmarks as agents; all are paid for landmarks that have an agent near, and pay for collisions.

    Dynamics, spaces, rewards and truncation are those of `mpe2.simple_spread_v3` with the same options; its others
    (curriculum, partial observations, success as an end, benchmark data, rendering) are not there.

    Args:
        num_envs: E, the copies in the batch.
        N: agents, called "agent_0", ..., and landmarks.
        local_ratio: the share of an agent's own collisions in its reward; the rest is of what all are paid.
        max_cycles: env steps after which an episode is truncated.
        continuous_actions: float32 [5] in 0 ... 1, of which numbers 1 to 4 push to the left, right, down, up; else one
            of these, or 0.

    Attributes:
        positions, velocities: float64 [E, N, 2] of the agents. They may be written to.
        landmarks: float64 [E, N, 2], their positions. They may be written to.

    Raises:
        ConfigError: `N` or `max_cycles` is below 1, or `local_ratio` not in 0 ... 1.
    """

    seeds_each_episode = True
    state_arrays = ("positions", "velocities", "landmarks", "_t", "_streams")

    def __init__(
        self,
        num_envs: int,
        N: int = 3,
        local_ratio: float = 0.5,
        max_cycles: int = 25,
        continuous_actions: bool = False,
    ):
        if N < 1 or max_cycles < 1 or not 0.0 <= local_ratio <= 1.0:
            raise ConfigError(f"N and max_cycles must be at least 1 and local_ratio in 0 ... 1, got {N}, {max_cycles}, "
                              f"{local_ratio}")  # fmt: skip
        n_numbers = 4 + 2 * N + 4 * (N - 1)
        observation_space = gym.spaces.Box(-np.inf, np.inf, (n_numbers,), np.float32)
        action_space = (
            gym.spaces.Box(0.0, 1.0, (N_MOVES,), np.float32) if continuous_actions else gym.spaces.Discrete(N_MOVES)
        )
        agents = {"agents": [f"agent_{i}" for i in range(N)]}
        super().__init__(num_envs, agents, {"agents": observation_space}, {"agents": action_space})
        self.state_space = gym.spaces.Box(-np.inf, np.inf, (N * n_numbers,), np.float32)
        self.positions, self.velocities, self.landmarks = np.zeros((3, num_envs, N, 2))
        self._force = np.zeros((N, 2))  # of the env that is being stepped
        self._t = np.zeros(num_envs, np.int64)
        self._local_ratio, self._max_cycles = float(local_ratio), max_cycles
        self._streams = new_streams(num_envs)

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        seed_streams(self._streams, env_indices, seeds)
        _reset(env_indices, self._streams, self.positions, self.velocities, self.landmarks, self._t)
        _observe(env_indices, self.positions, self.velocities, self.landmarks, out.groups["agents"].obs)

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        group = out.groups["agents"]
        _step(
            actions["agents"], self._local_ratio, self._max_cycles, self._force, self.positions, self.velocities,
            self.landmarks, self._t, group.obs, group.rewards, out.truncated,
        )  # fmt: skip

    def state(self) -> np.ndarray:
        """float32 [E, ...]: the observations of all agents in a row, as PettingZoo's `state()`."""
        obs = np.empty((*self.positions.shape[:2], len(self.state_space.low) // self.positions.shape[1]), np.float32)
        _observe(np.arange(self.num_envs), self.positions, self.velocities, self.landmarks, obs)
        return obs.reshape(self.num_envs, -1)


@njit(cache=True, nogil=True)
def _reset(env_indices, streams_E, position_EA2, velocity_EA2, landmark_EA2, t_E):
    for e in env_indices:
        t_E[e] = 0
        for a in range(position_EA2.shape[1]):
            for i in range(2):
                position_EA2[e, a, i] = uniform(streams_E, e, -1.0, 1.0)
                velocity_EA2[e, a, i] = 0.0
        for a in range(landmark_EA2.shape[1]):
            for i in range(2):
                landmark_EA2[e, a, i] = uniform(streams_E, e, -1.0, 1.0)


@njit(cache=True, nogil=True)
def _step(
    actions, local_ratio, max_cycles, force_A2, position_EA2, velocity_EA2, landmark_EA2, t_E, obs_EAK, reward_EA,
    truncated_E,
):  # fmt: skip
    """Step all envs.

    Args:
        actions: int64 [E, A], or float32 [E, A, 5].
        force_A2: room for the forces of one env.
        obs_EAK, reward_EA, truncated_E: the caller's, written; those before are the batch's own.
    """
    for e in range(len(t_E)):
        push(e, actions, SENSITIVITY, force_A2)
        _collide(e, position_EA2, force_A2)
        move(e, force_A2, position_EA2, velocity_EA2)
        _observe_env(e, position_EA2, velocity_EA2, landmark_EA2, obs_EAK)
        _pay(e, local_ratio, position_EA2, landmark_EA2, reward_EA)
        t_E[e] += 1
        truncated_E[e] = t_E[e] >= max_cycles


@njit(cache=True, nogil=True, error_model="numpy")  # 0 / 0 is NaN, as in mpe2
def _collide(e, position_EA2, force_A2):
    """Add the forces between env e's agents."""
    n_agents = position_EA2.shape[1]
    for a in range(n_agents):
        for b in range(a + 1, n_agents):
            x = position_EA2[e, a, 0] - position_EA2[e, b, 0]
            y = position_EA2[e, a, 1] - position_EA2[e, b, 1]
            distance = math.sqrt(x * x + y * y)
            depth = overlap(distance, TOUCHING)
            if depth == 0.0:
                continue
            force_x, force_y = CONTACT_FORCE * x / distance * depth, CONTACT_FORCE * y / distance * depth
            force_A2[a, 0] += force_x
            force_A2[a, 1] += force_y
            force_A2[b, 0] -= force_x
            force_A2[b, 1] -= force_y


@njit(cache=True, nogil=True)
def _pay(e, local_ratio, position_EA2, landmark_EA2, reward_EA):
    n_agents = position_EA2.shape[1]
    of_all = 0.0
    for k in range(n_agents):
        nearest = math.inf
        for a in range(n_agents):
            x = position_EA2[e, a, 0] - landmark_EA2[e, k, 0]
            y = position_EA2[e, a, 1] - landmark_EA2[e, k, 1]
            nearest = min(nearest, math.sqrt(x * x + y * y))
        of_all -= nearest
    for a in range(n_agents):
        own = 0.0
        for b in range(n_agents):
            x = position_EA2[e, a, 0] - position_EA2[e, b, 0]
            y = position_EA2[e, a, 1] - position_EA2[e, b, 1]
            if a != b and math.sqrt(x * x + y * y) < TOUCHING:
                own -= 1.0
        reward_EA[e, a] = of_all * (1 - local_ratio) + own * local_ratio


@njit(cache=True, nogil=True)
def _observe(env_indices, position_EA2, velocity_EA2, landmark_EA2, obs_EAK):
    for e in env_indices:
        _observe_env(e, position_EA2, velocity_EA2, landmark_EA2, obs_EAK)


@njit(cache=True, nogil=True)
def _observe_env(e, position_EA2, velocity_EA2, landmark_EA2, obs_EAK):
    """Own velocity and position, then where landmarks and others are from there, then what these say: nothing."""
    n_agents = position_EA2.shape[1]
    for a in range(n_agents):
        for i in range(2):
            here = position_EA2[e, a, i]
            obs_EAK[e, a, i] = velocity_EA2[e, a, i]
            obs_EAK[e, a, 2 + i] = here
            k = 4 + i
            for landmark in range(n_agents):
                obs_EAK[e, a, k] = landmark_EA2[e, landmark, i] - here
                k += 2
            for b in range(n_agents):
                if b != a:
                    obs_EAK[e, a, k] = position_EA2[e, b, i] - here
                    k += 2
            while k < obs_EAK.shape[2]:
                obs_EAK[e, a, k] = 0.0
                k += 2

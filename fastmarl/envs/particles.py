"""Dynamics and observations of the mpe2 particle worlds (round bodies in a plane), bit-identical to mpe2.

numba compiles these functions into their callers and reuses the result as long as the file of the caller is unchanged.
After a change here, delete the files in `__pycache__` next to this file.

Axes in names: B body (agents, followed by landmarks, which do not move).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numba import njit

from fastmarl.core.envs.arrays import StepArrays
from fastmarl.envs.own_arrays import ANY, COUNT, EnvOfArrays
from fastmarl.envs.streams import new_streams, seed_streams, uniform

SECONDS = 0.1  # duration of one step
DAMPING = 0.25
CONTACT_FORCE, CONTACT_MARGIN = 1e2, 1e-3
NO_OVERLAP = 746.0  # distance in contact margins; exp(-746) is 0, and so is the overlap
N_MOVES = 5  # none, left, right, down, up


class Positions:
    """Descriptor for the positions of agents or of other bodies; assignment writes to the array of bodies."""

    def __init__(self, *, of_agents: bool):
        self._of_agents = of_agents

    def __get__(self, world: Any, _: type | None = None) -> np.ndarray:
        n_agents = len(world.possible_agents)
        return world._bodies[:, :n_agents] if self._of_agents else world._bodies[:, n_agents:]

    def __set__(self, world: Any, positions: np.ndarray) -> None:
        self.__get__(world)[:] = positions


class ParticleWorld(EnvOfArrays):
    """Base class for batches of particle worlds; subclasses implement `step()`.

    Args:
        groups: Group name -> ids of its agents.
        numbers: Group name -> size of its agents' observations.
        start_B: Bound on the initial coordinates of each body, which are sampled from -bound to bound.
        first_shown: Others observe the velocities of the agent with this index and of all later agents.
        continuous_actions: If True, actions are float32 [5] in 0 ... 1.

    Attributes:
        positions, velocities: float64 [E, A, 2] of the agents. Writable.
    """

    positions = Positions(of_agents=True)

    def __init__(
        self,
        num_envs: int,
        groups: Mapping[str, Sequence[str]],
        numbers: Mapping[str, int],
        start_B: Sequence[float],
        first_shown: int,
        continuous_actions: bool,
    ):
        move_space = (
            gym.spaces.Box(0.0, 1.0, (N_MOVES,), np.float32) if continuous_actions else gym.spaces.Discrete(N_MOVES)
        )
        spaces = {name: _unbounded(n) for name, n in numbers.items()}
        super().__init__(num_envs, groups, spaces, dict.fromkeys(groups, move_space))
        self.state_space = _unbounded(sum(n * len(groups[name]) for name, n in numbers.items()))
        self._start_B, self._first_shown = np.array(start_B), first_shown
        self._bodies = np.zeros((num_envs, len(start_B), 2))  # positions
        self.velocities = np.zeros_like(self.positions)
        self._force = np.zeros((len(self.possible_agents), 2))  # in the env being stepped
        self._t = np.zeros(num_envs, np.int64)
        self._streams = new_streams(num_envs)
        self.state_arrays = {"_bodies": ANY, "velocities": ANY, "_t": COUNT, "_streams": ANY}

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        seed_streams(self._streams, env_indices, seeds)
        _reset(env_indices, self._streams, self._start_B, self._bodies, self.velocities, self._t)
        self._observe(env_indices, [out.groups[name].obs for name in self.groups])

    def state(self) -> np.ndarray:
        """Return the concatenated observations of all agents, float32 [E, ...], like `state()` of PettingZoo."""
        of_groups = [
            np.empty((self.num_envs, len(agents), gym.spaces.flatdim(self.observation_spaces[agents[0]])), np.float32)
            for agents in self.groups.values()
        ]
        self._observe(np.arange(self.num_envs), of_groups)
        return np.concatenate([obs.reshape(self.num_envs, -1) for obs in of_groups], axis=1)

    def _observe(self, env_indices: np.ndarray, of_groups: list[np.ndarray]) -> None:
        first = 0
        for obs_EAK in of_groups:
            _observe_envs(env_indices, first, self._first_shown, self._bodies, self.velocities, obs_EAK)
            first += obs_EAK.shape[1]


def _unbounded(n_numbers: int) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, (n_numbers,), np.float32)


@njit(cache=True, nogil=True)
def _reset(env_indices, streams_E, start_B, position_EB2, velocity_EA2, t_E):
    for e in env_indices:
        t_E[e] = 0
        for b in range(len(start_B)):
            for i in range(2):
                position_EB2[e, b, i] = uniform(streams_E, e, -start_B[b], start_B[b])
        velocity_EA2[e] = 0.0


@njit(cache=True, nogil=True)
def push(e, actions, sensitivity, force_A2):
    """Write the forces that result from the actions of agents.

    Continuous actions are clipped to their space, as in the PettingZoo wrapper.

    Args:
        actions: int64 [E, A], or float32 [E, A, 5].
    """
    for a in range(len(force_A2)):
        for i in range(2):
            back, forth = 2 * i + 1, 2 * i + 2
            if actions.ndim == 2:  # resolved at compile time
                force_A2[a, i] = sensitivity * ((actions[e, a] == forth) - (actions[e, a] == back))
            else:
                force_A2[a, i] = sensitivity * (_cut(actions[e, a, forth]) - _cut(actions[e, a, back]))


@njit(cache=True, nogil=True)
def _cut(number):
    return min(max(number, np.float32(0.0)), np.float32(1.0))


@njit(cache=True, nogil=True, error_model="numpy")  # 0 / 0 is NaN, as in mpe2
def collide(e, radius_B, position_EB2, force_A2):
    """Add the forces between the solid bodies of env e, the first `len(radius_B)` ones; landmarks do not move."""
    n_agents = len(force_A2)
    for a in range(n_agents):
        for b in range(a + 1, len(radius_B)):
            x = position_EB2[e, a, 0] - position_EB2[e, b, 0]
            y = position_EB2[e, a, 1] - position_EB2[e, b, 1]
            distance = math.sqrt(x * x + y * y)
            depth = _overlap(distance, radius_B[a] + radius_B[b])
            if depth == 0.0:
                continue
            force_x, force_y = CONTACT_FORCE * x / distance * depth, CONTACT_FORCE * y / distance * depth
            force_A2[a, 0] += force_x
            force_A2[a, 1] += force_y
            if b < n_agents:
                force_A2[b, 0] -= force_x
                force_A2[b, 1] -= force_y


@njit(cache=True, nogil=True)
def _overlap(distance, touching):
    """Return the penetration depth of two bodies, a smooth float64 that is 0.0 if they are far apart.

    Args:
        distance: Distance between their centres.
        touching: Distance at which they touch.
    """
    margins = -(distance - touching) / CONTACT_MARGIN
    if margins < -NO_OVERLAP:
        return 0.0
    return (max(margins, 0.0) + math.log1p(math.exp(-abs(margins)))) * CONTACT_MARGIN


@njit(cache=True, nogil=True)
def move(e, force_A2, position_EB2, velocity_EA2):
    """Move the agents of env e by their velocities, then update the velocities from the forces."""
    for a in range(len(force_A2)):
        for i in range(2):
            position_EB2[e, a, i] += velocity_EA2[e, a, i] * SECONDS
            velocity_EA2[e, a, i] = velocity_EA2[e, a, i] * (1 - DAMPING) + force_A2[a, i] * SECONDS


@njit(cache=True, nogil=True)
def _observe_envs(env_indices, first, first_shown, position_EB2, velocity_EA2, obs_EAK):
    for e in env_indices:
        observe(e, first, first_shown, position_EB2, velocity_EA2, obs_EAK)


@njit(cache=True, nogil=True)
def observe(e, first, first_shown, position_EB2, velocity_EA2, obs_EAK):
    """Write the observations of the group in env e whose first agent is `first`.

    These are the velocity and position of each agent, the relative positions of landmarks and other agents, the visible
    velocities of other agents, and zeros for communication.
    """
    n_agents = velocity_EA2.shape[1]
    for g in range(obs_EAK.shape[1]):
        a = first + g
        for i in range(2):
            here = position_EB2[e, a, i]
            obs_EAK[e, g, i] = velocity_EA2[e, a, i]
            obs_EAK[e, g, 2 + i] = here
            k = 4 + i
            for b in range(n_agents, position_EB2.shape[1]):
                obs_EAK[e, g, k] = position_EB2[e, b, i] - here
                k += 2
            for b in range(n_agents):
                if b != a:
                    obs_EAK[e, g, k] = position_EB2[e, b, i] - here
                    k += 2
            for b in range(first_shown, n_agents):
                if b != a:
                    obs_EAK[e, g, k] = velocity_EA2[e, b, i]
                    k += 2
            while k < obs_EAK.shape[2]:
                obs_EAK[e, g, k] = 0.0
                k += 2

"""Adversaries that chase good agents around obstacles: `mpe2.simple_tag_v3`."""

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

ADVERSARY_SIZE, GOOD_SIZE, OBSTACLE_SIZE = 0.075, 0.05, 0.2
ADVERSARY_SENSITIVITY, GOOD_SENSITIVITY = 3.0, 4.0
ADVERSARY_SPEED, GOOD_SPEED = 1.0, 1.3  # at most
CAUGHT = 10.0  # what a collision pays every adversary, and costs the good agent


@public("fastmarl.envs")
class SimpleTag(EnvOfArrays):
    """Slow adversaries are paid for touching quick good agents, who pay for that and for leaving the area.

    Dynamics, spaces, rewards and truncation are those of `mpe2.simple_tag_v3` with the same options; its others
    (curriculum, partial observations, success as an end, benchmark data, rendering) are not there.

    Args:
        num_envs: E, the copies in the batch.
        num_good: agents of the group "good agents", called "agent_0", ...
        num_adversaries: agents of the group "adversaries", called "adversary_0", ...
        num_obstacles: landmarks that nobody can enter.
        max_cycles: env steps after which an episode is truncated.
        continuous_actions: float32 [5] in 0 ... 1, of which numbers 1 to 4 push to the left, right, down, up; else one
            of these, or 0.

    Attributes:
        positions, velocities: float64 [E, A, 2] of the agents, adversaries first. They may be written to.
        obstacles: float64 [E, num_obstacles, 2], their positions. They may be written to.

    Raises:
        ConfigError: `num_good`, `num_adversaries` or `max_cycles` is below 1, or `num_obstacles` below 0.
    """

    seeds_each_episode = True
    state_arrays = ("_bodies", "velocities", "_t", "_streams")

    def __init__(
        self,
        num_envs: int,
        num_good: int = 1,
        num_adversaries: int = 3,
        num_obstacles: int = 2,
        max_cycles: int = 25,
        continuous_actions: bool = False,
    ):
        if min(num_good, num_adversaries, max_cycles) < 1 or num_obstacles < 0:
            raise ConfigError("num_good, num_adversaries, max_cycles must be at least 1 and num_obstacles at least 0, "
                              f"got {num_good}, {num_adversaries}, {max_cycles}, {num_obstacles}")  # fmt: skip
        n_agents = num_good + num_adversaries
        n_numbers = 4 + 2 * num_obstacles + 2 * (n_agents - 1) + 2 * num_good  # of an adversary
        move_space = (
            gym.spaces.Box(0.0, 1.0, (N_MOVES,), np.float32) if continuous_actions else gym.spaces.Discrete(N_MOVES)
        )
        groups = {
            "adversaries": [f"adversary_{i}" for i in range(num_adversaries)],
            "good agents": [f"agent_{i}" for i in range(num_good)],
        }
        observation_spaces = {"adversaries": _unbounded(n_numbers), "good agents": _unbounded(n_numbers - 2)}
        super().__init__(num_envs, groups, observation_spaces, dict.fromkeys(groups, move_space))
        self.state_space = _unbounded(n_agents * n_numbers - 2 * num_good)
        self._bodies = np.zeros((num_envs, n_agents + num_obstacles, 2))  # positions
        self.positions, self.obstacles = self._bodies[:, :n_agents], self._bodies[:, n_agents:]
        self.velocities = np.zeros((num_envs, n_agents, 2))
        self._force = np.zeros((n_agents, 2))  # of the env that is being stepped
        self._t = np.zeros(num_envs, np.int64)
        self._max_cycles = max_cycles
        self._streams = new_streams(num_envs)

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        seed_streams(self._streams, env_indices, seeds)
        _reset(env_indices, self._streams, self._bodies, self.velocities, self._t)
        self._observe(env_indices, *[out.groups[name].obs for name in self.groups])

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        adversaries, good = out.groups["adversaries"], out.groups["good agents"]
        _step(
            actions["adversaries"], actions["good agents"], self._max_cycles, self._force, self._bodies,
            self.velocities, self._t, adversaries.obs, good.obs, adversaries.rewards, good.rewards, out.truncated,
        )  # fmt: skip
        _fine(self.positions[:, -len(self.groups["good agents"]) :], good.rewards)

    def state(self) -> np.ndarray:
        """float32 [E, ...]: the observations of all agents in a row, as PettingZoo's `state()`."""
        of_groups = [
            np.empty((self.num_envs, len(agents), gym.spaces.flatdim(self.observation_spaces[agents[0]])), np.float32)
            for agents in self.groups.values()
        ]
        self._observe(np.arange(self.num_envs), *of_groups)
        return np.concatenate([obs.reshape(self.num_envs, -1) for obs in of_groups], axis=1)

    def _observe(self, env_indices: np.ndarray, adversary_EAK: np.ndarray, good_EAK: np.ndarray) -> None:
        _observe(env_indices, self._bodies, self.velocities, adversary_EAK, good_EAK)


def _unbounded(n_numbers: int) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, (n_numbers,), np.float32)


def _fine(position_EG2: np.ndarray, reward_EG: np.ndarray) -> None:
    """Let good agents pay for being far out, on either axis.

    NumPy's exp and libm's, which compiled code calls, differ in the last bit on some processors; mpe2 calls NumPy's.
    """
    distance = np.abs(position_EG2)
    beyond = np.minimum(np.exp(2 * np.minimum(distance, 3.0) - 2), 10)  # 10 long before 3, and exp can't overflow
    fine_EG2 = np.where(distance < 0.9, 0.0, np.where(distance < 1.0, (distance - 0.9) * 10, beyond))
    reward_EG -= fine_EG2[..., 0]
    reward_EG -= fine_EG2[..., 1]


# B: bodies, that is agents and behind them obstacles.


@njit(cache=True, nogil=True)
def _reset(env_indices, streams_E, position_EB2, velocity_EA2, t_E):
    n_agents = velocity_EA2.shape[1]
    for e in env_indices:
        t_E[e] = 0
        for b in range(position_EB2.shape[1]):
            bound = 1.0 if b < n_agents else 0.9
            for i in range(2):
                position_EB2[e, b, i] = uniform(streams_E, e, -bound, bound)
        velocity_EA2[e] = 0.0


@njit(cache=True, nogil=True)
def _step(
    adversary_actions, good_actions, max_cycles, force_A2, position_EB2, velocity_EA2, t_E, adversary_EAK, good_EAK,
    adversary_reward_EA, good_reward_EA, truncated_E,
):  # fmt: skip
    """Step all envs; the good agents' fines are not in their rewards yet.

    Args:
        adversary_actions, good_actions: int64 [E, A], or float32 [E, A, 5].
        force_A2: room for the forces of one env.
        adversary_EAK, ..., truncated_E: the caller's, written; those before are the batch's own.
    """
    n_adversaries = adversary_actions.shape[1]
    for e in range(len(t_E)):
        push(e, adversary_actions, ADVERSARY_SENSITIVITY, force_A2[:n_adversaries])
        push(e, good_actions, GOOD_SENSITIVITY, force_A2[n_adversaries:])
        _collide(e, n_adversaries, position_EB2, force_A2)
        move(e, force_A2, position_EB2, velocity_EA2)
        _limit_speeds(e, n_adversaries, velocity_EA2)
        _observe_env(e, position_EB2, velocity_EA2, adversary_EAK, good_EAK)
        _pay(e, position_EB2, adversary_reward_EA, good_reward_EA)
        t_E[e] += 1
        truncated_E[e] = t_E[e] >= max_cycles


@njit(cache=True, nogil=True, error_model="numpy")  # 0 / 0 is NaN, as in mpe2
def _collide(e, n_adversaries, position_EB2, force_A2):
    """Add the forces between env e's bodies; none moves obstacles."""
    n_agents = len(force_A2)
    for a in range(n_agents):
        for b in range(a + 1, position_EB2.shape[1]):
            x = position_EB2[e, a, 0] - position_EB2[e, b, 0]
            y = position_EB2[e, a, 1] - position_EB2[e, b, 1]
            distance = math.sqrt(x * x + y * y)
            depth = overlap(distance, _size(a, n_adversaries, n_agents) + _size(b, n_adversaries, n_agents))
            if depth == 0.0:
                continue
            force_x, force_y = CONTACT_FORCE * x / distance * depth, CONTACT_FORCE * y / distance * depth
            force_A2[a, 0] += force_x
            force_A2[a, 1] += force_y
            if b < n_agents:
                force_A2[b, 0] -= force_x
                force_A2[b, 1] -= force_y


@njit(cache=True, nogil=True)
def _size(body, n_adversaries, n_agents):
    if body < n_adversaries:
        return ADVERSARY_SIZE
    return GOOD_SIZE if body < n_agents else OBSTACLE_SIZE


@njit(cache=True, nogil=True)
def _limit_speeds(e, n_adversaries, velocity_EA2):
    for a in range(velocity_EA2.shape[1]):
        limit = ADVERSARY_SPEED if a < n_adversaries else GOOD_SPEED
        x, y = velocity_EA2[e, a, 0], velocity_EA2[e, a, 1]
        speed = math.sqrt(x * x + y * y)
        if speed > limit:
            velocity_EA2[e, a, 0] = x / speed * limit
            velocity_EA2[e, a, 1] = y / speed * limit


@njit(cache=True, nogil=True)
def _pay(e, position_EB2, adversary_reward_EA, good_reward_EA):
    """Pay for collisions of the two groups."""
    n_adversaries = adversary_reward_EA.shape[1]
    of_all = 0.0
    for g in range(good_reward_EA.shape[1]):
        own = 0.0
        for a in range(n_adversaries):
            x = position_EB2[e, a, 0] - position_EB2[e, n_adversaries + g, 0]
            y = position_EB2[e, a, 1] - position_EB2[e, n_adversaries + g, 1]
            if math.sqrt(x * x + y * y) < ADVERSARY_SIZE + GOOD_SIZE:
                own += CAUGHT
        good_reward_EA[e, g] = -own
        of_all += own
    for a in range(n_adversaries):
        adversary_reward_EA[e, a] = of_all


@njit(cache=True, nogil=True)
def _observe(env_indices, position_EB2, velocity_EA2, adversary_EAK, good_EAK):
    for e in env_indices:
        _observe_env(e, position_EB2, velocity_EA2, adversary_EAK, good_EAK)


@njit(cache=True, nogil=True)
def _observe_env(e, position_EB2, velocity_EA2, adversary_EAK, good_EAK):
    n_adversaries = adversary_EAK.shape[1]
    for a in range(n_adversaries):
        _observe_agent(e, a, n_adversaries, position_EB2, velocity_EA2, adversary_EAK[e, a])
    for g in range(good_EAK.shape[1]):
        _observe_agent(e, n_adversaries + g, n_adversaries, position_EB2, velocity_EA2, good_EAK[e, g])


@njit(cache=True, nogil=True)
def _observe_agent(e, a, n_adversaries, position_EB2, velocity_EA2, obs_K):
    """Own velocity and position, where obstacles and others are from there, and how fast other good agents are."""
    n_agents, n_bodies = velocity_EA2.shape[1], position_EB2.shape[1]
    for i in range(2):
        here = position_EB2[e, a, i]
        obs_K[i] = velocity_EA2[e, a, i]
        obs_K[2 + i] = here
        k = 4 + i
        for b in range(n_agents, n_bodies):
            obs_K[k] = position_EB2[e, b, i] - here
            k += 2
        for b in range(n_agents):
            if b != a:
                obs_K[k] = position_EB2[e, b, i] - here
                k += 2
        for b in range(n_adversaries, n_agents):
            if b != a:
                obs_K[k] = velocity_EA2[e, b, i]
                k += 2

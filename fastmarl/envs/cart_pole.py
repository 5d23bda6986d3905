"""Multi-agent cart pole: Gymnasium's CartPole-v1 as used in RLlib's MultiAgentCartPole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numba import njit

from fastmarl.core.envs.arrays import StepArrays
from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.envs.own_arrays import ANY, COUNT, EnvOfArrays
from fastmarl.envs.streams import new_streams, seed_streams, uniform

GRAVITY = 9.8
CART_MASS, POLE_MASS = 1.0, 0.1
TOTAL_MASS = POLE_MASS + CART_MASS
LENGTH = 0.5  # half the pole length
POLE_MASS_LENGTH = POLE_MASS * LENGTH
FORCE = 10.0
SECONDS = 0.02  # duration of one step
X_LIMIT = 2.4
ANGLE_LIMIT = 12 * 2 * math.pi / 360
START = 0.05  # bound on the absolute initial values
TERMINATED, TRUNCATED = 1, 2


@public("fastmarl.envs")
class CartPole(EnvOfArrays):
    """Every agent balances a pole. The episode is over when all agents have terminated or been truncated.

    Dynamics, spaces, rewards, time limit and flags match RLlib's `MultiAgentCartPole` with Gymnasium's CartPole-v1.
    The episode flag `terminated` means that every agent has terminated or been truncated. In RLlib, a seed gives all
    poles the same initial state; here the initial states differ.

    Args:
        num_envs: Number of copies in the batch, E.
        num_agents: Number of poles; agents are 0, 1, ...
        max_episode_steps: Number of env steps after which agents whose poles still stand are truncated.

    Attributes:
        poles: float64 [E, agents, 4]: position, velocity, angle in rad, angular velocity. Writable.

    Raises:
        ConfigError: If a number is below 1.
    """

    def __init__(self, num_envs: int, num_agents: int = 1, max_episode_steps: int = 500):
        if num_agents < 1 or max_episode_steps < 1:
            raise ConfigError(f"num_agents and max_episode_steps must be at least 1, got {num_agents} and "
                              f"{max_episode_steps}")  # fmt: skip
        high = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)
        spaces: tuple[gym.Space, gym.Space] = gym.spaces.Box(-high, high), gym.spaces.Discrete(2)
        super().__init__(num_envs, {"poles": range(num_agents)}, {"poles": spaces[0]}, {"poles": spaces[1]})
        self.poles = np.zeros((num_envs, num_agents, 4))
        self._ends = np.zeros((num_envs, num_agents), np.uint8)  # TERMINATED, TRUNCATED, or both
        self._t = np.zeros(num_envs, np.int64)
        self._max_episode_steps = max_episode_steps
        self._streams = new_streams(num_envs)
        self.state_arrays = {"poles": ANY, "_ends": (0, TERMINATED | TRUNCATED), "_t": COUNT, "_streams": ANY}

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        seed_streams(self._streams, env_indices, seeds)
        _reset(env_indices, self._streams, self.poles, self._ends, self._t, out.groups["poles"].obs)

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        group = out.groups["poles"]
        _step(
            actions["poles"], self._max_episode_steps, self.poles, self._ends, self._t, group.obs, group.rewards,
            group.terminated, group.truncated, out.terminated, out.truncated,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _reset(env_indices, streams_E, pole_EA4, ends_EA, t_E, obs_EA4):
    for e in env_indices:
        t_E[e] = 0
        for a in range(pole_EA4.shape[1]):
            ends_EA[e, a] = 0
            for i in range(4):
                pole_EA4[e, a, i] = uniform(streams_E, e, -START, START)
                obs_EA4[e, a, i] = pole_EA4[e, a, i]


@njit(cache=True, nogil=True)
def _step(
    action_EA, max_steps, pole_EA4, ends_EA, t_E, obs_EA4, reward_EA, terminated_EA, truncated_EA, terminated_E,
    truncated_E,
):  # fmt: skip
    """Step all envs. The caller allocates the last six arrays; the three before them belong to the batch."""
    for e in range(len(t_E)):
        t_E[e] += 1
        late = t_E[e] >= max_steps
        all_ended = all_truncated = True
        for a in range(pole_EA4.shape[1]):
            if ends_EA[e, a] == 0:
                force = FORCE if action_EA[e, a] == 1 else -FORCE
                pole = pole_EA4[e, a, 0], pole_EA4[e, a, 1], pole_EA4[e, a, 2], pole_EA4[e, a, 3]
                x, speed, angle, turn = _pushed(force, *pole)
                fallen = abs(x) > X_LIMIT or abs(angle) > ANGLE_LIMIT
                pole_EA4[e, a, 0], pole_EA4[e, a, 1], pole_EA4[e, a, 2], pole_EA4[e, a, 3] = x, speed, angle, turn
                obs_EA4[e, a, 0], obs_EA4[e, a, 1], obs_EA4[e, a, 2], obs_EA4[e, a, 3] = x, speed, angle, turn
                reward_EA[e, a] = 1.0
                terminated_EA[e, a], truncated_EA[e, a] = fallen, late
                ends_EA[e, a] = fallen * TERMINATED + late * TRUNCATED
            all_ended &= ends_EA[e, a] != 0
            all_truncated &= ends_EA[e, a] & TRUNCATED != 0
        terminated_E[e], truncated_E[e] = all_ended, all_truncated


@njit(cache=True, nogil=True)
def _pushed(force, x, speed, angle, turn):
    """Advance a pole by one step of Euler's method.

    The equations are those of Florian, "Correct equations for the dynamics of the cart-pole system" (2007), without
    friction, evaluated in CartPole-v1's order.
    """
    cosine, sine = math.cos(angle), math.sin(angle)
    push = (force + POLE_MASS_LENGTH * (turn * turn) * sine) / TOTAL_MASS
    turn_change = (GRAVITY * sine - cosine * push) / (LENGTH * (4.0 / 3.0 - POLE_MASS * (cosine * cosine) / TOTAL_MASS))
    speed_change = push - POLE_MASS_LENGTH * turn_change * cosine / TOTAL_MASS
    return (
        x + SECONDS * speed,
        speed + SECONDS * speed_change,
        angle + SECONDS * turn,
        turn + SECONDS * turn_change,
    )

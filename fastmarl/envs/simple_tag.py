"""Adversaries that chase good agents around obstacles, like `mpe2.simple_tag_v3`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from fastmarl.core.envs.arrays import StepArrays
from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.envs.particles import ParticleWorld, Positions, collide, move, observe, push

ADVERSARY_RADIUS, GOOD_RADIUS, OBSTACLE_RADIUS = 0.075, 0.05, 0.2
ADVERSARY_SENSITIVITY, GOOD_SENSITIVITY = 3.0, 4.0
ADVERSARY_SPEED, GOOD_SPEED = 1.0, 1.3  # maximum speeds
CAUGHT = 10.0  # reward of every adversary for a collision, and penalty of the good agent


@public("fastmarl.envs")
class SimpleTag(ParticleWorld):
    """Slow adversaries chase fast good agents.

    Adversaries are rewarded for touching good agents, which are penalised for that and for leaving the area.

    Dynamics, spaces, rewards and truncation match `mpe2.simple_tag_v3` with the same options. Its other options
    (curriculum, partial observations, termination on success, benchmark data, rendering) are not supported.

    Args:
        num_envs: Number of copies in the batch, E.
        num_good: Number of agents in the group "good agents", named "agent_0", ...
        num_adversaries: Number of agents in the group "adversaries", named "adversary_0", ...
        num_obstacles: Number of impassable landmarks.
        max_cycles: Number of env steps after which an episode is truncated.
        continuous_actions: If True, actions are float32 [5] in 0 ... 1, whose elements 1 to 4 push to the left, right,
            down and up; if False, an action is the index of such an element, or 0 for no push.

    Attributes:
        positions, velocities: float64 [E, A, 2] of the agents, adversaries first. Writable.
        obstacles: Positions of the obstacles, float64 [E, num_obstacles, 2]. Writable.

    Raises:
        ConfigError: If `num_good`, `num_adversaries` or `max_cycles` is below 1, or `num_obstacles` is below 0.
    """

    obstacles = Positions(of_agents=False)

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
            raise ConfigError("num_good, num_adversaries, max_cycles must be >= 1 and num_obstacles >= 0, got "
                              f"{num_good}, {num_adversaries}, {max_cycles} and {num_obstacles}")  # fmt: skip
        n_agents = num_good + num_adversaries
        groups = {
            "adversaries": [f"adversary_{i}" for i in range(num_adversaries)],
            "good agents": [f"agent_{i}" for i in range(num_good)],
        }
        n_numbers = 4 + 2 * num_obstacles + 2 * (n_agents - 1) + 2 * num_good  # in the observation of an adversary
        numbers = {"adversaries": n_numbers, "good agents": n_numbers - 2}
        starts = n_agents * [1.0] + num_obstacles * [0.9]
        super().__init__(num_envs, groups, numbers, starts, num_adversaries, continuous_actions)
        radii = ADVERSARY_RADIUS, GOOD_RADIUS, OBSTACLE_RADIUS
        self._rules = max_cycles, np.repeat(radii, (num_adversaries, num_good, num_obstacles))

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        adversaries, good = out.groups["adversaries"], out.groups["good agents"]
        _step(
            actions["adversaries"], actions["good agents"], self._rules, self._force, self._bodies, self.velocities,
            self._t, adversaries.obs, good.obs, adversaries.rewards, good.rewards, out.truncated,
        )  # fmt: skip
        _fine(self.positions[:, -len(self.groups["good agents"]) :], good.rewards)


def _fine(position_EG2: np.ndarray, reward_EG: np.ndarray) -> None:
    """Penalise good agents for each coordinate near or beyond the border of the area.

    This is not compiled: NumPy's exp, which mpe2 uses, and libm's exp, which compiled code calls, differ in the last
    bit on some processors.
    """
    distance = np.abs(position_EG2)
    beyond = np.minimum(np.exp(2 * np.minimum(distance, 3.0) - 2), 10)  # reaches 10 before 3, so exp cannot overflow
    fine_EG2 = np.where(distance < 0.9, 0.0, np.where(distance < 1.0, (distance - 0.9) * 10, beyond))
    reward_EG -= fine_EG2[..., 0]
    reward_EG -= fine_EG2[..., 1]


@njit(cache=True, nogil=True)
def _step(
    adversary_actions, good_actions, rules, force_A2, position_EB2, velocity_EA2, t_E, adversary_EAK, good_EAK,
    adversary_reward_EA, good_reward_EA, truncated_E,
):  # fmt: skip
    """Step all envs, without the penalties of `_fine()`.

    Args:
        adversary_actions, good_actions: int64 [E, A], or float32 [E, A, 5].
        rules: (steps of an episode, radius of each body).
        force_A2: Scratch space for the forces in a single env.
        adversary_EAK, ..., truncated_E: Output arrays of the caller; the other arrays belong to the batch.
    """
    max_cycles, radius_B = rules
    n = adversary_actions.shape[1]
    for e in range(len(t_E)):
        push(e, adversary_actions, ADVERSARY_SENSITIVITY, force_A2[:n])
        push(e, good_actions, GOOD_SENSITIVITY, force_A2[n:])
        collide(e, radius_B, position_EB2, force_A2)
        move(e, force_A2, position_EB2, velocity_EA2)
        _limit_speeds(e, n, velocity_EA2)
        observe(e, 0, n, position_EB2, velocity_EA2, adversary_EAK)
        observe(e, n, n, position_EB2, velocity_EA2, good_EAK)
        _pay(e, position_EB2, adversary_reward_EA, good_reward_EA)
        t_E[e] += 1
        truncated_E[e] = t_E[e] >= max_cycles


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
    """Write the rewards for collisions between the two groups."""
    n_adversaries = adversary_reward_EA.shape[1]
    of_all = 0.0
    for g in range(good_reward_EA.shape[1]):
        own = 0.0
        for a in range(n_adversaries):
            x = position_EB2[e, a, 0] - position_EB2[e, n_adversaries + g, 0]
            y = position_EB2[e, a, 1] - position_EB2[e, n_adversaries + g, 1]
            if math.sqrt(x * x + y * y) < ADVERSARY_RADIUS + GOOD_RADIUS:
                own += CAUGHT
        good_reward_EA[e, g] = -own
        of_all += own
    for a in range(n_adversaries):
        adversary_reward_EA[e, a] = of_all

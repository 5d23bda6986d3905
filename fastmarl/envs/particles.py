"""Dynamics that mpe2's particle worlds have in common: round agents in a plane, bit-identical to mpe2's.

numba compiles these functions into their callers, and keeps the result as long as the caller's own file is the same:
after a change here, delete the files in `__pycache__` beside this one.
"""

import math

import numpy as np
from numba import njit

SECONDS = 0.1  # of one step
DAMPING = 0.25
CONTACT_FORCE, CONTACT_MARGIN = 1e2, 1e-3
NO_OVERLAP = 746.0  # exp(-746) is 0, and so is the overlap of bodies that are so many margins apart
N_MOVES = 5  # none, left, right, down, up


@njit(cache=True, nogil=True)
def push(e, actions, sensitivity, force_A2):
    """Write the forces of agents' own actions. Continuous actions are cut to their space, as by PettingZoo's wrapper.

    Args:
        actions: int64 [E, A], or float32 [E, A, 5].
    """
    for a in range(len(force_A2)):
        for i in range(2):
            back, forth = 2 * i + 1, 2 * i + 2
            if actions.ndim == 2:  # known when this is compiled
                force_A2[a, i] = sensitivity * ((actions[e, a] == forth) - (actions[e, a] == back))
            else:
                force_A2[a, i] = sensitivity * (_cut(actions[e, a, forth]) - _cut(actions[e, a, back]))


@njit(cache=True, nogil=True)
def _cut(number):
    return min(max(number, np.float32(0.0)), np.float32(1.0))


@njit(cache=True, nogil=True)
def overlap(distance, touching):
    """How deep two bodies are in each other: a smooth float64, 0.0 if they are far apart.

    Args:
        distance: of their centres.
        touching: the distance at which they touch.
    """
    margins = -(distance - touching) / CONTACT_MARGIN
    if margins < -NO_OVERLAP:
        return 0.0
    return (max(margins, 0.0) + math.log1p(math.exp(-abs(margins)))) * CONTACT_MARGIN


@njit(cache=True, nogil=True)
def move(e, force_A2, position_EA2, velocity_EA2):
    """Move env e's agents by their velocities, then change these by the forces."""
    for a in range(len(force_A2)):
        for i in range(2):
            position_EA2[e, a, i] += velocity_EA2[e, a, i] * SECONDS
            velocity_EA2[e, a, i] = velocity_EA2[e, a, i] * (1 - DAMPING) + force_A2[a, i] * SECONDS

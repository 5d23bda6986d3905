"""A stream of random numbers for each env of a batch, to be drawn from in compiled code.

It is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): 64 bits of state, so
an array uint64 [E] holds all streams, and env e draws by `uniform(streams, e, ...)`. What an env draws depends on its
seed and on what it has drawn before, and on no other env.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def new_streams(num_envs: int) -> np.ndarray:
    """uint64 [num_envs], different in every run."""
    return np.random.SeedSequence().generate_state(num_envs, np.uint64)


def seed_streams(streams_E: np.ndarray, env_indices: np.ndarray, seeds: Sequence[int] | None) -> None:
    """Begin the streams of some envs anew, each from its seed; without seeds they go on."""
    if seeds is not None:
        _seed_streams(streams_E, env_indices, np.array([seed & _MASK for seed in seeds], np.uint64))


@njit(cache=True, nogil=True)
def _seed_streams(streams_E, env_indices, seeds):
    for k in range(len(env_indices)):
        streams_E[env_indices[k]] = _mixed(seeds[k] + _STEP)


@njit(cache=True, nogil=True)
def _mixed(bits):
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


@njit(cache=True, nogil=True)
def random_bits(streams_E, e):
    """uint64, the next of env e's stream."""
    streams_E[e] += _STEP
    return _mixed(streams_E[e])


@njit(cache=True, nogil=True)
def uniform(streams_E, e, low, high):
    """float64 in [low, high), in steps of (high - low) / 2**53."""
    return low + (high - low) * (np.float64(random_bits(streams_E, e) >> np.uint64(11)) * 2.0**-53)


@njit(cache=True, nogil=True)
def below(streams_E, e, n):
    """int64 in 0 ... n - 1, for n < 2**32; none is likelier than another by more than n / 2**32."""
    return np.int64(((random_bits(streams_E, e) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def draw_zero(streams_E, e, numbers_N):
    """int64: the place of a number that is 0, drawn evenly among all such; there must be one."""
    n_zeros = 0
    for n in range(len(numbers_N)):
        n_zeros += numbers_N[n] == 0
    left = below(streams_E, e, n_zeros)
    n = 0
    while numbers_N[n] != 0 or left > 0:
        left -= numbers_N[n] == 0
        n += 1
    return n

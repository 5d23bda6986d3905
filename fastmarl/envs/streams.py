"""A stream of random numbers for each env of a batch, for use in compiled code.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). Its state
has 64 bits, so an array uint64 [E] stores all streams, and env e samples with `uniform(streams, e, ...)`. The numbers
of an env depend on its seed and its earlier samples, but not on other envs.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit

from fastmarl.core.errors.checks import plain_seed

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def new_streams(num_envs: int) -> np.ndarray:
    """Return randomly seeded streams, uint64 [num_envs]."""
    return np.random.SeedSequence().generate_state(num_envs, np.uint64)


def seed_streams(streams_E: np.ndarray, env_indices: np.ndarray, seeds: Sequence[int] | None) -> None:
    """Restart the streams of some envs, each from its seed.

    Args:
        streams_E: All streams, uint64 [E], changed in place.
        env_indices: Indices of the envs, integers [k].
        seeds: One integer seed per env, taken modulo 2**64; None to continue the streams.

    Raises:
        ConfigError: If a seed is not an integer.
    """
    if seeds is not None:
        words = [(plain_seed(seed) or 0) & _MASK for seed in seeds]
        _seed_streams(streams_E, env_indices, np.array(words, np.uint64))


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
    """Return the next 64 bits, uint64, of the stream of env `e` in `streams_E`."""
    streams_E[e] += _STEP
    return _mixed(streams_E[e])


@njit(cache=True, nogil=True)
def uniform(streams_E, e, low, high):
    """Sample a float64 in [low, high) from `streams_E[e]`, in steps of (high - low) / 2**53."""
    return low + (high - low) * (np.float64(random_bits(streams_E, e) >> np.uint64(11)) * 2.0**-53)


@njit(cache=True, nogil=True)
def below(streams_E, e, n):
    """Sample an int64 in 0 ... n - 1, for n < 2**32, from `streams_E[e]`.

    The relative deviation of probabilities is at most n / 2**32.
    """
    return np.int64(((random_bits(streams_E, e) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def draw_zero(streams_E, e, numbers_N):
    """Return the index, int64, of a uniformly sampled zero in `numbers_N`, which must contain one."""
    n_zeros = 0
    for n in range(len(numbers_N)):
        n_zeros += numbers_N[n] == 0
    left = below(streams_E, e, n_zeros)
    n = 0
    while numbers_N[n] != 0 or left > 0:
        left -= numbers_N[n] == 0
        n += 1
    return n

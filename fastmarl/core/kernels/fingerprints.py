"""Fingerprints of rows, and sorting of rows by lane, for a record of actions.

Axes in names: R row, N one of n rows, W word, T entry (rows of a lane in a call).
"""

import numpy as np
from numba import njit

_STEP = 0x9E3779B97F4A7C15


def word_keys(n: int) -> np.ndarray:
    """Return keys for n words, uint64 [n]: odd, so that changing a word changes its product; equal in all versions."""
    with np.errstate(over="ignore"):
        z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_STEP)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))) | np.uint64(1)


def add_words_numpy(words_RW, n, key_W, sum_N):
    """NumPy reference for add_words()."""
    with np.errstate(over="ignore"):
        sum_N[:n] += (words_RW[:n].astype(np.uint64) * key_W[: words_RW.shape[1]]).sum(1, np.uint64)


@njit(cache=True, nogil=True)
def add_words(words_RW, n, key_W, sum_N):
    """Add the sum of words times keys to `sum_N`, for each of the first n rows.

    Args:
        words_RW: Unsigned integers [R, W].
        n: int.
        key_W: uint64 [>= W].
        sum_N: uint64 [>= n], updated in place.
    """
    for i in range(n):
        total = np.uint64(0)
        for w in range(words_RW.shape[1]):
            total += np.uint64(words_RW[i, w]) * key_W[w]
        sum_N[i] += total


def mix_numpy(sum_N, prev_N, reward_R, order_K, out_K):
    """NumPy reference for mix()."""
    sums, prevs = sum_N[order_K], prev_N[order_K]
    with np.errstate(over="ignore"):
        bits = (reward_R.view(np.uint64)[prevs] ^ np.uint64(_STEP)) * np.uint64(0xD6E8FEB86659FD93)
        z = np.where(prevs >= 0, sums + bits, sums)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    out_K[:] = (z >> np.uint64(32)).astype(np.uint32)


@njit(cache=True, nogil=True)
def mix(sum_N, prev_N, reward_R, order_K, out_K):
    """Compute row fingerprints from the sums of their words and the reward of the previous row.

    Args:
        sum_N: uint64 [n], see add_words().
        prev_N: int64 [n], previous row, or -1 if there is no reward yet.
        reward_R: float64, rewards of the rows in `prev_N`.
        order_K: int64 [k], indices < n of the rows to compute.
        out_K: uint32 [k], out.
    """
    bits_R = reward_R.view(np.uint64)
    for k in range(len(order_K)):
        i = order_K[k]
        z = sum_N[i]
        if prev_N[i] >= 0:
            z += (bits_R[prev_N[i]] ^ np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xD6E8FEB86659FD93)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out_K[k] = np.uint32(z >> np.uint64(32))


def checksum_numpy(words_W):
    """NumPy reference for checksum()."""
    with np.errstate(over="ignore"):
        z = words_W ^ (np.arange(1, len(words_W) + 1, dtype=np.uint64) * np.uint64(_STEP))
        z = (z ^ (z >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        return int((z ^ (z >> np.uint64(32))).sum(dtype=np.uint64))


@njit(cache=True, nogil=True)
def checksum(words_W):
    """Return a uint64 checksum of uint64 [W] that depends on every word and on their order."""
    total, key = np.uint64(0), np.uint64(0)
    for w in range(len(words_W)):
        key += np.uint64(0x9E3779B97F4A7C15)
        z = words_W[w] ^ key
        z = (z ^ (z >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        total += z ^ (z >> np.uint64(32))
    return total


def group_by_entry_numpy(entry_N, env_t_N, count_T, first_T, order_N, step_N):
    """NumPy reference for group_by_entry()."""
    order = np.argsort(entry_N, kind="stable")
    order = order[entry_N[order] >= 0]
    order_N[: len(order)] = order
    entries, env_ts = entry_N[order], env_t_N[order]
    count_T[:] = np.bincount(entries, minlength=len(count_T))
    begins = np.flatnonzero(np.r_[True, entries[1:] != entries[:-1]][: len(order)])
    first_T[entries[begins]] = env_ts[begins]
    steps = np.diff(env_ts, prepend=0)
    steps[begins] = 1
    step_N[: len(order)] = steps
    return len(order), int(steps.max(initial=1))


@njit(cache=True, nogil=True)
def group_by_entry(entry_N, env_t_N, count_T, first_T, order_N, step_N):
    """Sort rows by entry, keeping their order within each entry; rows with a negative entry are omitted.

    Args:
        entry_N: int32 [n].
        env_t_N: int32 [n], ascending within an entry.
        count_T: int64, out: number of rows of each entry.
        first_T: int32, out: env step of the first row of each entry; entries without rows are not written.
        order_N: int64 [n], out: row numbers.
        step_N: int32 [n], out: env steps since the previous row of the entry; 1 for the first row.

    Returns:
        (k, most): the number of rows with an entry, and the maximum of their steps, at least 1.
    """
    n, n_entries = len(entry_N), len(count_T)
    count_T[:] = 0
    for i in range(n):
        if entry_N[i] >= 0:
            count_T[entry_N[i]] += 1
    place_T = np.empty(n_entries, np.int64)
    last_T = np.empty(n_entries, np.int32)
    k = 0
    for t in range(n_entries):
        place_T[t] = k
        last_T[t] = -1
        k += count_T[t]
    most = 1
    for i in range(n):
        t = entry_N[i]
        if t < 0:
            continue
        place = place_T[t]
        place_T[t] = place + 1
        order_N[place] = i
        if last_T[t] < 0:
            first_T[t] = env_t_N[i]
            step_N[place] = 1
        else:
            step = env_t_N[i] - last_T[t]
            step_N[place] = step
            most = max(most, step)
        last_T[t] = env_t_N[i]
    return k, most

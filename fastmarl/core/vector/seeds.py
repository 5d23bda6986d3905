"""Independent random streams of a runner; the stream of an env depends only on the runner's seed and its own index."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import whole_number
from fastmarl.core.native._locked import locked
from fastmarl.core.native._reset_seeds import Children, take_seeds

T = TypeVar("T")
_ENVS, _TORCH, _NUMPY, _WEIGHTS, _WORKERS, _EVALUATION = range(6)
_WORD = 0xFFFFFFFF
_SEEDING = RLock()  # all threads share torch's global generator; reentrant, as a constructor may create other modules


def _unlock() -> None:
    global _SEEDING
    _SEEDING = RLock()  # a forked process lacks the thread that may hold the old lock


os.register_at_fork(after_in_child=_unlock)


class Streams:
    """Independent streams per (runner, incarnation, purpose, index), from `numpy.random.SeedSequence`.

    Args:
        seed: Seed of the run; None for streams that differ from run to run.
        worker_index: Index of the runner.
        incarnation: Number of times the runner was recreated.
    """

    def __init__(self, seed: int | None, worker_index: int, incarnation: int = 0):
        self.is_seeded = seed is not None
        self._entropy = np.random.SeedSequence(seed).entropy
        self._runner = worker_index, incarnation

    def resets_of(self, env_index: int) -> np.random.SeedSequence:
        """Return the sequence whose n-th child seeds the n-th reset of the env."""
        return self._sequence(_ENVS, env_index)

    def of_evaluation(self, *key: int) -> int:
        """Return the seed of an evaluation's sampled actions or, given an episode number, of that episode's reset."""
        return self._integer(_EVALUATION, *key)

    def of_worker(self, first_env: int) -> list[int] | None:
        """Return a seed for the global generators of the worker process starting at this env; None if unseeded."""
        return self._sequence(_WORKERS, first_env).generate_state(4).tolist() if self.is_seeded else None

    def torch_generator(self, device: torch.device) -> torch.Generator:
        """Return a generator for exploration by modules."""
        return torch.Generator(device).manual_seed(self._integer(_TORCH))

    def numpy_generator(self) -> np.random.Generator:
        """Return a generator for random actions."""
        return np.random.default_rng(self._sequence(_NUMPY))

    def torch_seeded(self, make: Callable[[], T], *added: int) -> T:
        """Call `make` with torch's global generator seeded for initial weights, and return its result.

        The global generator is restored afterwards, even after an interrupt; other threads wait until then.

        Args:
            make: Function that creates modules.
            added: Number of a module added later, which gives it different weights.
        """
        return locked(_SEEDING, self._made, make, added)

    def _made(self, make: Callable[[], T], added: tuple[int, ...]) -> T:
        if not self.is_seeded:
            return make()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._integer(_WEIGHTS, *added))
            return make()

    def _integer(self, *key: int) -> int:
        return int(self._sequence(*key).generate_state(1, np.uint32)[0] >> 1)

    def _sequence(self, *key: int) -> np.random.SeedSequence:
        # Weights depend only on the seed, so that all runners of a run start with equal weights.
        runner = () if key[0] == _WEIGHTS else self._runner
        return np.random.SeedSequence(self._entropy, spawn_key=(*runner, *key))


class ResetSeeds:
    """Seeds for all env resets of a runner, from (seed, worker_index, incarnation, env index, episode number).

    Args:
        streams: Streams of the runner.
        num_envs: Number of envs in the runner.
        always: True to seed resets even in an unseeded run, with seeds that differ from run to run.

    Attributes:
        numbers: Number of the next reset per env.
        last: Seed of the last reset per env, below 2**31; None for unseeded resets.
    """

    def __init__(self, streams: Streams, num_envs: int, *, always: bool = False):
        seeds_all = streams.is_seeded or always
        self._of_env = [Children(streams.resets_of(i)) for i in range(num_envs)] if seeds_all else None
        self.numbers = [0] * num_envs
        self.last: list[int | None] = [None] * num_envs
        self._streams = streams
        self._evaluation: tuple[list[int], list[int], list[int] | None] | None = None

    def __len__(self) -> int:
        return len(self.last)

    def get_state(self) -> list[int]:
        """Return the number of resets per env, including surplus envs from the state of a larger runner."""
        return list(self.numbers)

    def check_state(self, state: Any) -> None:
        """Raise ConfigError if `set_state()` cannot accept `state`."""
        if not isinstance(state, (list, tuple)) or not state:
            raise ConfigError(f"num_resets must be a list of integers, one per env, got {state!r:.200}")
        for number in state:
            if whole_number("num_resets of an env", number) > _WORD:
                raise ConfigError(f"num_resets of an env must be below 2**32, got {number}")

    def set_state(self, state: list[int]) -> None:
        """Continue after the resets counted in `state`."""
        self.numbers = [*map(int, state), *[0] * (len(self) - len(state))]

    def take(self, env_index: int) -> int | None:
        """Return the seed for the next reset of the env, and advance its counter."""
        if self._evaluation is not None:
            self.last[env_index] = self._for_evaluation(env_index, *self._evaluation)
            return self.last[env_index]
        number = self.numbers[env_index]
        self.numbers[env_index] = number + 1
        self.last[env_index] = seed = None if self._of_env is None else self._of_env[env_index].first_word(number) >> 1
        return seed

    def take_all(self, env_indices: list[int]) -> list[int] | None:
        """Return the seeds for the next resets of several envs, and advance their counters; None if unseeded."""
        if self._evaluation is None and self._of_env is not None:
            return take_seeds(self._of_env, self.numbers, self.last, env_indices)
        seeds = [self.take(env_index) for env_index in env_indices]
        return None if None in seeds else seeds  # type: ignore[return-value]

    def evaluate(self, left: list[int] | None, seeds: list[int] | None) -> None:
        """Seed resets for evaluation from now on, or for training again if `left` is None.

        Args:
            left: Number of episodes still to be started per env; decremented by the caller.
            seeds: Seeds of the episodes; None to derive them from the runner seed.
        """
        self._evaluation = None if left is None else (left, list(left), seeds)

    def _for_evaluation(
        self, env_index: int, left: list[int], wanted: list[int], seeds: list[int] | None
    ) -> int | None:
        """Return the seed for the current evaluation episode of the env.

        An env that failed, or whose episode was discarded, gets the same seed again. Non-participating envs of a batch
        get their previous seed.
        """
        round_ = wanted[env_index] - left[env_index] - 1
        number = env_index + len(self) * max(0, round_)
        if seeds is not None:
            return seeds[number] if number < len(seeds) else 0
        return self._streams.of_evaluation(number) if self._streams.is_seeded else None

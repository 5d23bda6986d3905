"""Random streams of one runner, all from one seed: no two share draws, and an env's depends on its index alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_ENVS, _TORCH, _NUMPY, _WEIGHTS = range(4)


class Streams:
    """Independent streams by (runner, purpose, index), by `numpy.random.SeedSequence`.

    Args:
        seed: None for streams that differ from run to run.
        worker_index: the runner's.
    """

    def __init__(self, seed: int | None, worker_index: int):
        self._is_seeded = seed is not None
        self._entropy = np.random.SeedSequence(seed).entropy
        self._worker_index = worker_index

    def env_seed(self, env_index: int, *restarts: int) -> int | None:
        """For the first reset() of an env: below 2**31, or None in an unseeded run.

        `restarts`: how often the env was made anew, if it was.
        """
        return self._integer(_ENVS, env_index, *restarts) if self._is_seeded else None

    def torch_generator(self, device: torch.device) -> torch.Generator:
        """For the modules' exploration."""
        return torch.Generator(device).manual_seed(self._integer(_TORCH))

    def numpy_generator(self) -> np.random.Generator:
        """For random actions."""
        return np.random.default_rng(self._sequence(_NUMPY))

    @contextmanager
    def torch_seeded(self, *added: int) -> Iterator[None]:
        """Initial weights are drawn from this seed's stream; torch's global generator stays as it was.

        Args:
            added: the number of a module that was added later, for weights of its own.
        """
        if not self._is_seeded:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._integer(_WEIGHTS, *added))
            yield

    def _integer(self, *key: int) -> int:
        return int(self._sequence(*key).generate_state(1, np.uint32)[0] >> 1)

    def _sequence(self, *key: int) -> np.random.SeedSequence:
        # Weights are those of the seed alone: all runners of a run begin with the same.
        worker = () if key[0] == _WEIGHTS else (self._worker_index,)
        return np.random.SeedSequence(self._entropy, spawn_key=(*worker, *key))

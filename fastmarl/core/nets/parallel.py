"""A compiled network that computes many rows in several threads."""

import numpy as np

from fastmarl.core.native._dense import DenseNet
from fastmarl.core.nets.dense_layers import DenseLayers
from fastmarl.core.nets.row_threads import RowThreads

LEAST_MULTIPLICATIONS = 4_000_000  # in one pass for several threads


class ParallelNet:
    """A compiled network for threads, each of which has memory of its own for all but the weights.

    Args:
        layers: Its layers.
        threads: The threads to use.
    """

    def __init__(self, layers: DenseLayers, threads: RowThreads):
        self._layers, self._threads = layers, threads
        self._net = layers.compiled()
        self._copies: list[DenseNet] = []
        self._least_rows = LEAST_MULTIPLICATIONS // max(1, layers.multiplications())

    def forward(
        self, obs: np.ndarray, states: list[np.ndarray], next_states: list[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Compute the network; see `DenseNet.forward()`."""
        if len(obs) < self._least_rows or not self._threads.is_open:
            return self._net.forward(obs, states, next_states)
        while len(self._copies) < self._threads.n - 1:
            self._copies.append(self._layers.compiled())
        return self._net.forward(obs, states, next_states, self._threads.started(), self._copies)

from typing import Any

import numpy as np

from fastmarl.core.native._block_threads import BlockThreads

ACTIVATIONS: dict[str, int]
CELLS: dict[str, int]
VARIANTS: dict[str, int]
BEST: str
MOST_THREADS: int

class DenseNet:
    def __init__(
        self,
        n_obs: int,
        layers: list[tuple[int, np.ndarray | None, np.ndarray | None, str, float, float | None, Any]],
        logits: int,
        values: int,
        log_std: np.ndarray | None,
        variant: str | None = None,
        scale: float = 1.0,
        bound: np.ndarray | None = None,
    ) -> None: ...
    def forward(
        self,
        obs: np.ndarray,
        states: list[np.ndarray] | None = None,
        next_states: list[np.ndarray] | None = None,
        threads: BlockThreads | None = None,
        copies: list[DenseNet] | None = None,
    ) -> tuple[np.ndarray, Any]: ...

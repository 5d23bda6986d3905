from typing import Any

import numpy as np

ACTIVATIONS: dict[str, int]
VARIANTS: dict[str, int]
BEST: str

class DenseNet:
    def __init__(
        self,
        n_obs: int,
        layers: list[tuple[int, np.ndarray, np.ndarray | None, str, float]],
        logits: int,
        values: int,
        log_std: np.ndarray | None,
        variant: str | None = None,
        bound: np.ndarray | None = None,
    ) -> None: ...
    def forward(self, obs: np.ndarray) -> tuple[np.ndarray, Any]: ...

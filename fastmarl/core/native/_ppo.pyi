from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastmarl.core.native._block_threads import BlockThreads

Floats = NDArray[np.float32]
Cell = tuple[str, Floats, Floats | None, Floats | None, Floats | None]
Layer = tuple[int, Floats, Floats | None, str, float, Floats | None, Floats | None, Cell | None]

VARIANTS: dict[str, int]
BEST: str
SUMS: tuple[str, ...]
MOST_PARTS: int

class PPOGradient:
    width: int
    def __init__(
        self,
        n_obs: int,
        layers: list[Layer],
        logits: int,
        values: int,
        *,
        sizes: list[int] | None = None,
        log_std: Floats | None = None,
        d_log_std: Floats | None = None,
        bound: float | None = None,
        has_mask: bool = False,
        has_former: bool = False,
        is_given: bool = False,
        variant: str | None = None,
    ): ...
    def compute(self, obs: Floats, rows: Floats, order: NDArray[np.int64], **options: Any) -> NDArray[np.float64]: ...
    def outputs(
        self, obs: Floats, order: NDArray[np.int64], *, length: int = 1, states: list[Floats] | None = None
    ) -> Floats: ...
    def backward(self, derivatives: Floats) -> None: ...

def compute_parts(
    nets: list[PPOGradient],
    obs: Floats,
    rows: Floats,
    orders: list[NDArray[np.int64]],
    threads: BlockThreads | None,
    *,
    length: int = 1,
    states: list[Floats] | None = None,
    n_counted: int = -1,
    clip: float,
    value_coeff: float,
    entropy_coeff: float,
    value_clip: float | None = None,
    kl_coeff: float = 0,
) -> NDArray[np.float64]: ...

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

def tanh_(x: Floats) -> None: ...

class PPOLoss:
    def __init__(
        self,
        *,
        clip_param: float,
        vf_clip_param: float | None,
        vf_loss_coeff: float,
        entropy_coeff: float,
        kl_coeff: float | None,
        bound: float | None = None,
    ): ...
    def categorical(
        self, rows: Floats, n_obs: int, logits: Floats, values: Floats, d_logits: Floats, d_values: Floats
    ) -> None: ...
    def gaussian(
        self, rows: Floats, n_obs: int, logits: Floats, values: Floats, d_logits: Floats, d_values: Floats
    ) -> None: ...

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Flags = NDArray[np.uint8]

class Derivatives:
    def __init__(
        self,
        *,
        clip_param: float,
        vf_clip_param: float | None,
        vf_loss_coeff: float,
        entropy_coeff: float,
        kl_coeff: float | None,
    ): ...
    def by_ratios_and_probabilities(
        self,
        logarithms: Floats,
        probabilities: Floats,
        ratios: Floats,
        values: Floats,
        advantages: Floats,
        targets: Floats,
        counts: Flags,
        by_probabilities: Floats,
        by_logarithms: Floats,
        by_logp: Floats,
        by_values: Floats,
    ) -> None: ...
    def by_normalized_logits(
        self,
        probabilities: Floats,
        former: Floats,
        actions: NDArray[np.int64],
        counts: Flags,
        by_logarithms: Floats,
        by_softmax: Floats,
        by_logp: Floats,
        derivatives: Floats,
        negative: Floats,
    ) -> None: ...

from collections.abc import Sequence

import numpy as np

class ActionDraws:
    n_logits: int | None
    def sample(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
    def likeliest(self, logits: np.ndarray) -> np.ndarray: ...

class ChoiceDraws(ActionDraws):
    def __init__(
        self,
        rng: np.random.Generator,
        nvec: Sequence[int] | None = None,
        shape: tuple[int, ...] | None = None,
        dtype: type = ...,
        variant: str | None = None,
    ) -> None: ...

class GaussianDraws(ActionDraws):
    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...] | None = None) -> None: ...

"""Actions from logits on the CPU, for batches so small that torch's calls take longer than its sums."""

import math
from typing import Protocol

import numpy as np

from fastmarl.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical
from fastmarl.kernels.sample import likeliest_choices, sample_choices, sample_gaussian

SMALL = 8192  # logits; torch is not slower with more


class ActionSampler(Protocol):
    """Draws by the same distribution as its torch counterpart, from another stream of random numbers.

    Arrays that it returns are written to again by the next call.

    Attributes:
        n_logits: how many it takes for an action; None: any number.
    """

    n_logits: int | None

    def sample(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(actions [n, *action shape], their log-probabilities float32 [n]) for float32 [n, k], C-contiguous."""

    def likeliest(self, logits: np.ndarray) -> np.ndarray:
        """The most likely actions [n, *action shape]."""


def make_action_sampler(kind: type[Distribution], rng: np.random.Generator) -> ActionSampler | None:
    """For exactly these kinds: Categorical, MultiCategorical, DiagGaussian. None: leave it to the distribution."""
    bound, attributes = vars(kind).get("bound", (kind, ()))
    given = dict(attributes)
    if bound is Categorical:
        return ChoiceSampler(rng, None, ())
    if bound is MultiCategorical:
        return ChoiceSampler(rng, given["nvec"], given["shape"])
    if bound is DiagGaussian:
        return GaussianSampler(rng, given.get("shape"))
    return None


class _Room:
    """Memory for random numbers, actions and log-probabilities; what was ever enough is kept.

    Args:
        noise, actions: dtypes.
    """

    def __init__(self, noise: type, actions: type):
        self._dtypes = noise, actions, np.float32
        self._memories: list[np.ndarray] = [np.empty(0, dtype) for dtype in self._dtypes]
        self._arrays: tuple[np.ndarray, ...] = ()
        self._shape = -1, -1

    def of(self, n: int, k: int) -> tuple[np.ndarray, ...]:
        """(random numbers [n, k], actions [n, k], log-probabilities [n]), to be written."""
        if self._shape != (n, k):
            if n * k > len(self._memories[0]) or n > len(self._memories[2]):
                self._memories = [np.empty(n * max(1, k), dtype) for dtype in self._dtypes]
            noise, actions, logp = self._memories
            self._arrays = noise[: n * k].reshape(n, k), actions[: n * k].reshape(n, k), logp[:n]
            self._shape = n, k
        return self._arrays


class ChoiceSampler:
    """For Discrete and MultiDiscrete: int64 actions, by one uniform number for each choice.

    Args:
        nvec: number of choices of each part, in a row; None: one part, as many as there are logits.
        shape: of an action.
    """

    def __init__(self, rng: np.random.Generator, nvec: tuple[int, ...] | None, shape: tuple[int, ...]):
        self._rng = rng
        self._shape = shape
        self._nvec_P = np.array(nvec or [0], np.int64)
        self.n_logits = None if nvec is None else sum(nvec)
        self._room = _Room(np.float64, np.int64)

    def sample(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, nvec_P = len(logits), self._parts(logits)
        uniform_NP, actions_NP, logp_N = self._room.of(n, len(nvec_P))
        self._rng.random(out=uniform_NP)
        sample_choices(logits, nvec_P, uniform_NP, actions_NP, logp_N)
        return actions_NP.reshape(n, *self._shape), logp_N

    def likeliest(self, logits: np.ndarray) -> np.ndarray:
        n, nvec_P = len(logits), self._parts(logits)
        _, actions_NP, _ = self._room.of(n, len(nvec_P))
        likeliest_choices(logits, nvec_P, actions_NP)
        return actions_NP.reshape(n, *self._shape)

    def _parts(self, logits: np.ndarray) -> np.ndarray:
        if self.n_logits is None and self._nvec_P[0] != logits.shape[1]:
            self._nvec_P = np.array([logits.shape[1]], np.int64)
        return self._nvec_P


class GaussianSampler:
    """For Box: float32 actions, by one normal number for each; logits are means, then log standard deviations.

    Args:
        shape: of an action; None: one axis.
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...] | None):
        self._rng = rng
        self._shape = shape
        self.n_logits = None if shape is None else 2 * math.prod(shape)
        self._room = _Room(np.float32, np.float32)

    def sample(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, k = len(logits), logits.shape[1] // 2
        noise_NK, actions_NK, logp_N = self._room.of(n, k)
        self._rng.standard_normal(out=noise_NK, dtype=np.float32)
        sample_gaussian(logits, noise_NK, actions_NK, logp_N)
        return self._shaped(actions_NK), logp_N

    def likeliest(self, logits: np.ndarray) -> np.ndarray:
        n, k = len(logits), logits.shape[1] // 2
        _, actions_NK, _ = self._room.of(n, k)
        np.copyto(actions_NK, logits[:, :k])
        return self._shaped(actions_NK)

    def _shaped(self, actions_NK: np.ndarray) -> np.ndarray:
        return actions_NK if self._shape is None else actions_NK.reshape(len(actions_NK), *self._shape)

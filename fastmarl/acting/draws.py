"""Actions from logits on the CPU, for batches so small that torch's calls take longer than its sums."""

import math
from typing import Protocol

import numpy as np

from fastmarl.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical
from fastmarl.kernels.sample import likeliest_choices, sample_gaussian
from fastmarl.native._draws import ChoiceDraws

SMALL = 8192  # logits; torch is not slower with more


class ActionSampler(Protocol):
    """Draws by the same distribution as its torch counterpart, from another stream of random numbers.

    Arrays that it returns are written to again by the next call.

    Attributes:
        n_logits: how many it takes for an action; None: any number.
    """

    n_logits: int | None

    def sample(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(actions [n, *action shape], their log-probabilities float32 [n]) for [n, k]."""

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
    """Memory for actions, log-probabilities and what else there is of each action; what was ever enough is kept.

    Args:
        shape: of an action; None: one axis.
        dtypes: of the arrays [n, k], the last of which is that of the actions.
    """

    def __init__(self, shape: tuple[int, ...] | None, *dtypes: type):
        self._shape = shape
        self._dtypes = *dtypes, np.float32
        self._memories: list[np.ndarray] = [np.empty(0, dtype) for dtype in self._dtypes]
        self._arrays: tuple[np.ndarray, ...] = ()
        self._size = -1, -1

    def of(self, n: int, k: int) -> tuple[np.ndarray, ...]:
        """(arrays [n, k], actions [n, *shape] in the memory of the last one, log-probabilities [n]), to be written."""
        if self._size != (n, k):
            if n * k > len(self._memories[0]) or n > len(self._memories[-1]):
                self._memories = [np.empty(n * max(1, k), dtype) for dtype in self._dtypes]
            *memories, logp = self._memories
            arrays = [memory[: n * k].reshape(n, k) for memory in memories]
            actions = arrays[-1] if self._shape is None else arrays[-1].reshape(n, *self._shape)
            self._arrays = *arrays, actions, logp[:n]
            self._size = n, k
        return self._arrays


class ChoiceSampler:
    """For Discrete and MultiDiscrete: int64 actions, by one uniform number for each choice.

    Args:
        nvec: number of choices of each part, in a row; None: one part, as many as there are logits.
        shape: of an action.
    """

    def __init__(self, rng: np.random.Generator, nvec: tuple[int, ...] | None, shape: tuple[int, ...]):
        self._draws = ChoiceDraws(rng, nvec)
        self._nvec_P = np.array(nvec or [0], np.int64)
        self._n_parts = 1 if nvec is None else len(nvec)
        self.n_logits = None if nvec is None else sum(nvec)
        self._room = _Room(shape, np.int64)

    def sample(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        actions_NP, actions, logp_N = self._room.of(len(logits), self._n_parts)
        self._draws.draw_into(logits, actions_NP, logp_N)
        return actions, logp_N

    def likeliest(self, logits: np.ndarray) -> np.ndarray:
        actions_NP, actions, _ = self._room.of(len(logits), self._n_parts)
        if self.n_logits is None:
            self._nvec_P[0] = logits.shape[1]
        likeliest_choices(np.ascontiguousarray(logits, np.float32), self._nvec_P, actions_NP)
        return actions


class GaussianSampler:
    """For Box: float32 actions, by one normal number for each; logits are means, then log standard deviations.

    Args:
        shape: of an action; None: one axis.
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...] | None):
        self._rng = rng
        self.n_logits = None if shape is None else 2 * math.prod(shape)
        self._room = _Room(shape, np.float32, np.float32)

    def sample(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        noise_NK, actions_NK, actions, logp_N = self._room.of(len(logits), logits.shape[1] // 2)
        self._rng.standard_normal(out=noise_NK, dtype=np.float32)
        sample_gaussian(np.ascontiguousarray(logits, np.float32), noise_NK, actions_NK, logp_N)
        return actions, logp_N

    def likeliest(self, logits: np.ndarray) -> np.ndarray:
        n, k = len(logits), logits.shape[1] // 2
        _, actions_NK, actions, _ = self._room.of(n, k)
        np.copyto(actions_NK, logits[:, :k])
        return actions

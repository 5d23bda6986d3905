"""Action distributions over finite sets."""

import math
from functools import cache
from typing import ClassVar

import gymnasium as gym
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot, pad

from fastmarl.core.modules.distributions.base import Deterministic, Distribution, event_dims, flat, shaped
from fastmarl.core.objects.public import public

RACE_BELOW = 256  # number of logits below which drawing an exponential per logit is cheaper than a uniform per row
NARROW = 16  # number of logits per row below which torch's softmax is slow along rows, but not along columns


@public("fastmarl.distributions")
class Categorical(Distribution):
    """For Discrete(n): n logits; actions are int64 [B] from 0 to n - 1, without the space's `start`."""

    def __init__(self, logits: Tensor):
        self.logits = torch.log_softmax(logits, -1, dtype=torch.float32)

    @staticmethod
    def required_input_dim(action_space: gym.Space) -> int:
        return int(action_space.n)  # type: ignore[attr-defined]

    @classmethod
    def from_logits(cls, logits: Tensor) -> "Categorical":
        return cls(logits)

    @classmethod
    def sample_and_logp(cls, logits: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        if logits.numel() < RACE_BELOW or logits.shape[1] >= NARROW or logits.is_cuda:
            logp = torch.log_softmax(logits, -1, dtype=torch.float32)
        else:
            logp = torch.log_softmax(logits.t(), 0, dtype=torch.float32).t()
        actions = _draw(logp, generator)
        return actions.squeeze(-1), logp.gather(-1, actions).squeeze(-1)

    @classmethod
    def deterministic(cls, logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    @property
    def probs(self) -> Tensor:
        return self.logits.exp()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        logp = self.logits.detach()
        return _draw(logp.reshape(-1, logp.shape[-1]), generator).reshape(logp.shape[:-1])

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample one-hot actions [B, n] with the gradient of the probabilities (straight-through estimator).

        `generator` is as in `sample()`.
        """
        drawn = one_hot(self.sample(generator), self.logits.shape[-1])
        return (drawn - self.probs).detach() + self.probs

    def logp(self, value: Tensor) -> Tensor:
        return self.logits.gather(-1, value.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -_expectation(self.probs, self.logits)

    def kl(self, other: "Categorical") -> Tensor:
        return _expectation(self.probs, self.logits - other.logits)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.logits.argmax(-1), event_dims=0)


def _draw(logp: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sample column indices, int64 [n, 1], from normalised log-probabilities, float32 [n, k]."""
    if logp.numel() < RACE_BELOW or logp.is_cuda:
        # Of exponential variables with rates p, the index of the smallest has distribution p. They are never exactly 0,
        # so a rate of 0 never wins.
        clocks = torch.empty_like(logp).exponential_(generator=generator)
        return torch.div(logp.exp(), clocks, out=clocks).argmax(-1, keepdim=True)
    cumulated = logp.exp().cumsum(-1, dtype=torch.float64)
    drawn = torch.rand((len(logp), 1), dtype=torch.float64, generator=generator)
    drawn *= cumulated[:, -1:]  # rounding errors make the total differ slightly from 1
    actions = torch.searchsorted(cumulated, drawn, right=True)
    return actions.clamp_(max=logp.shape[1] - 1)  # NaN sorts after the last column


def _expectation(probs: Tensor, values: Tensor) -> Tensor:
    """Return the sum of probs * values over the last axis, with 0 * infinity = 0."""
    return (probs * values.masked_fill(probs == 0, 0.0)).sum(-1)


@public("fastmarl.distributions")
class MultiCategorical(Distribution):
    """For MultiDiscrete(nvec): concatenated logits of all choices; actions are int64 [B, *nvec.shape], counted from 0.

    Class attributes, set by `get_action_dist_cls`:
        nvec: Number of options of each choice, flattened.
        shape: Shape of the space.
    """

    nvec: ClassVar[tuple[int, ...]]
    shape: ClassVar[tuple[int, ...]]

    def __init__(self, choices: Categorical):
        self._choices = choices  # logits [B, choices, max(nvec)]

    @staticmethod
    def required_input_dim(action_space: gym.Space) -> int:
        return int(action_space.nvec.sum())  # type: ignore[attr-defined]

    @classmethod
    def from_logits(cls, logits: Tensor) -> "MultiCategorical":
        return cls(Categorical(cls._padded(logits)))

    @classmethod
    def sample_and_logp(cls, logits: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        n, n_choices = len(logits), len(cls.nvec)
        actions, logp = Categorical.sample_and_logp(cls._padded(logits).reshape(n * n_choices, -1), generator)
        return actions.reshape(n, *cls.shape), logp.reshape(n, n_choices).sum(-1)

    @classmethod
    def deterministic(cls, logits: Tensor) -> Tensor:
        return cls._padded(logits).argmax(-1).reshape(len(logits), *cls.shape)

    @classmethod
    def _padded(cls, logits: Tensor) -> Tensor:
        """Reshape [B, sum(nvec)] to [B, choices, max(nvec)]; shorter choices are padded with -inf."""
        widest = max(cls.nvec)
        if sum(cls.nvec) < widest * len(cls.nvec):
            logits = pad(logits, (0, 1), value=-math.inf)
            logits = logits.index_select(-1, _padded_columns(cls.nvec, logits.device))
        return logits.reshape(*logits.shape[:-1], len(cls.nvec), widest)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return shaped(self._choices.sample(generator), self.shape)

    def logp(self, value: Tensor) -> Tensor:
        return self._choices.logp(flat(value, self.shape)).sum(-1)

    def entropy(self) -> Tensor:
        return self._choices.entropy().sum(-1)

    def kl(self, other: "MultiCategorical") -> Tensor:
        return self._choices.kl(other._choices).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(shaped(self._choices.logits.argmax(-1), self.shape), event_dims=len(self.shape))


@cache
def _padded_columns(nvec: tuple[int, ...], device: torch.device) -> Tensor:
    """Return each choice's column indices in all logits, padded with the index sum(nvec)."""
    columns, first = [], 0
    for n in nvec:
        columns += [first + i if i < n else sum(nvec) for i in range(max(nvec))]
        first += n
    with torch.inference_mode(False):  # otherwise a tensor cached during sampling could not be used in training
        return torch.tensor(columns, device=device)


@public("fastmarl.distributions")
class Bernoulli(Distribution):
    """For MultiBinary: `logits`, float [B, n], are the log-odds of a 1; actions are int8 [B, *shape], 0 or 1.

    The class attribute `shape` is None for one axis of any length.
    """

    shape: ClassVar[tuple[int, ...] | None] = None

    def __init__(self, logits: Tensor):
        self.logits = logits

    @staticmethod
    def required_input_dim(action_space: gym.Space) -> int:
        return math.prod(action_space.shape or ())

    @classmethod
    def from_logits(cls, logits: Tensor) -> "Bernoulli":
        return cls(logits)

    @classmethod
    def sample_and_logp(cls, logits: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        distribution = cls(logits)
        ones = distribution._draw(generator)
        return shaped(ones.to(torch.int8), cls.shape), distribution._logp(ones)

    @classmethod
    def deterministic(cls, logits: Tensor) -> Tensor:
        return shaped((logits > 0).to(torch.int8), cls.shape)

    def _draw(self, generator: torch.Generator | None) -> Tensor:
        logits = self.logits.detach()
        return torch.rand(logits.shape, generator=generator, device=logits.device) < logits.sigmoid()

    def _logp(self, ones: Tensor) -> Tensor:
        return logsigmoid(torch.where(ones, self.logits, -self.logits)).sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return shaped(self._draw(generator).to(torch.int8), self.shape)

    def logp(self, value: Tensor) -> Tensor:
        return self._logp(flat(value, self.shape) > 0)

    def entropy(self) -> Tensor:
        return self._two_way().entropy().sum(-1)

    def kl(self, other: "Bernoulli") -> Tensor:
        return self._two_way().kl(other._two_way()).sum(-1)

    def _two_way(self) -> Categorical:
        """Return an equivalent categorical distribution over 0 and 1 for each element."""
        return Categorical(torch.stack([logsigmoid(-self.logits), logsigmoid(self.logits)], -1))

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.deterministic(self.logits), event_dims=event_dims(self.shape))

"""Returns of episodes, and how exactly they tell the mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastmarl.core.errors import ConfigError
from fastmarl.core.public import public

METHODS = ("t", "bootstrap")


@public("fastmarl.play")
@dataclass(frozen=True, eq=False, kw_only=True)
class Returns:
    """Returns of several episodes, which are taken to be independent: those of equal seeds, or of greedy policies in
    an environment without chance, are not.

    Attributes:
        returns: float64 [N], N at least 1.
    """

    returns: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean: the standard deviation (with N - 1) divided by the root of N; NaN for a single episode."""
        return math.nan if len(self.returns) < 2 else float(self.returns.std(ddof=1)) / math.sqrt(len(self.returns))

    def confidence_interval(self, level: float = 0.95, *, method: str = "t") -> tuple[float, float]:
        """Of the mean: bounds that hold it in a share `level` of all experiments. Needs scipy.

        Args:
            method: "t": mean ± t * standard error, t a quantile of Student's distribution with N - 1 degrees of
                freedom (Student, "The probable error of a mean", Biometrika 6, 1908), exact for normally distributed
                returns. "bootstrap": the BCa interval of 9,999 resamples (Efron, "Better bootstrap confidence
                intervals", Journal of the American Statistical Association 82, 1987), which is not symmetric where the
                returns are not; it is the same in each call.

        Returns:
            (low, high): NaN for a single episode; both the mean where all returns are equal.

        Raises:
            ConfigError: `level` is not between 0 and 1, or there is no such method.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level must be between 0 and 1, got {level!r}")
        if method not in METHODS:
            raise ConfigError(f"method must be one of {list(METHODS)}, got {method!r}")
        from scipy import stats

        if len(self.returns) < 2:
            return math.nan, math.nan
        if self.returns.min() == self.returns.max():
            return self.mean, self.mean
        if method == "bootstrap":
            interval = stats.bootstrap(
                (self.returns,), np.mean, confidence_level=level, batch=100, rng=np.random.default_rng(0)
            ).confidence_interval
            return float(interval.low), float(interval.high)
        half = float(stats.t.ppf((1 + level) / 2, len(self.returns) - 1)) * self.standard_error
        return self.mean - half, self.mean + half

"""Running mean and standard deviation of observations, returns, or any other rows of numbers."""

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_keys, float_array, whole_number
from fastmarl.core.kernels.moments import update_moments
from fastmarl.core.kernels.normalize import count_and_normalize
from fastmarl.core.objects.public import public


@public("fastmarl")
class RunningMeanStd:
    """Count, mean and variance of all rows seen, per column. Moments from several runners can be merged.

    ```python
    moments = fastmarl.RunningMeanStd(18)
    for episode in runner.sample():
        for agent in episode.agent_episodes.values():
            moments.update(agent.get_observations())
    module.mean, module.std = torch.from_numpy(moments.mean), torch.from_numpy(moments.std)
    ```

    Args:
        size: Number of elements in a row.
    """

    def __init__(self, size: int):
        self.count = 0
        self.mean = np.zeros(size)
        self._m2 = np.zeros(size)  # sum of squared deviations from the mean

    def update(self, rows: np.ndarray) -> None:
        """Add rows [n, ...] with `size` elements each, of any real dtype."""
        values = _compiled(np.ascontiguousarray(rows)).reshape(len(rows), self.mean.size)
        mean, m2 = self.mean.copy(), self._m2.copy()
        self._become(int(update_moments(values, self.count, mean, m2)), mean, m2)

    def normalize(
        self,
        rows: np.ndarray,
        out: np.ndarray,
        *,
        update: bool = True,
        demean: bool = True,
        destd: bool = True,
        clip: float = math.inf,
    ) -> int:
        """Write rows [n, size], normalised to mean 0 and standard deviation 1, to `out`, float32 [n, size].

        Each row is added (if `update`) and then normalised by the statistics of all rows so far, so the result does not
        depend on how rows are split into calls. Before the first row, the mean is 0 and the standard deviation 1.

        Args:
            rows: Rows to normalise.
            out: Array for the result.
            update: Add the rows to the statistics.
            demean: Subtract the mean.
            destd: Divide by the standard deviation.
            clip: Clip the result to [-clip, clip].

        Returns:
            -1, or the index of the first row that contains NaN or infinity; that row and later ones are neither added
            nor written.
        """
        mean, m2 = (self.mean.copy(), self._m2.copy()) if update else (self.mean, self._m2)
        unfit = int(count_and_normalize(_compiled(rows), self.count, mean, m2, update, demean, destd, clip, out))
        if update:
            self._become(self.count + (len(rows) if unfit < 0 else unfit), mean, m2)
        return unfit

    def _become(self, count: int, mean: np.ndarray, m2: np.ndarray) -> None:
        """Replace all three attributes at the same time, so that an interrupt cannot leave them inconsistent."""
        self.__dict__.update(count=count, mean=mean, _m2=m2)

    def __copy__(self) -> Self:
        """Return a copy that shares the arrays, which methods replace but never write to."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def copy(self) -> Self:
        """Return an independent copy with separate arrays."""
        other = type(self)(self.mean.size)
        other.count, other.mean, other._m2 = self.count, self.mean.copy(), self._m2.copy()
        return other

    def merge(self, other: Self) -> None:
        """Add all rows seen by `other` (Chan, Golub, LeVeque 1983)."""
        count = self.count + other.count
        if count == 0:
            return
        delta = other.mean - self.mean
        m2 = self._m2 + other._m2 + delta**2 * (self.count * other.count / count)
        self._become(count, self.mean + delta * (other.count / count), m2)

    @property
    def var(self) -> np.ndarray:
        """Population variance of the rows (divided by n), float64 [size]; ones if there are no rows yet."""
        return self._m2 / self.count if self.count else np.ones_like(self._m2)

    @property
    def std(self) -> np.ndarray:
        """Square root of `var`, float64 [size]."""
        return np.sqrt(self.var)

    def get_state(self) -> dict[str, Any]:
        """Return the complete state as plain arrays and numbers."""
        return {"count": self.count, "mean": self.mean.copy(), "m2": self._m2.copy()}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError if `state` is not a result of `get_state()` with the same number of columns."""
        self._read(state)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state`, a result of `get_state()`.

        Raises:
            ConfigError: As in `check_state()`; nothing is changed then.
        """
        self._become(*self._read(state))

    def _read(self, state: Mapping[str, Any]) -> tuple[int, np.ndarray, np.ndarray]:
        """Return copies of count, mean and m2 of a state."""
        check_keys("the state of running moments", state, ("count", "mean", "m2"))
        count = whole_number("the count of running moments", state["count"])
        mean, m2 = (
            float_array(f"{name!r} of running moments", state[name], self.mean.shape) for name in ("mean", "m2")
        )
        if (m2 < 0).any():
            raise ConfigError(f"'m2' of running moments must be >= 0, got {m2.min()}")
        return count, mean, m2


def _compiled(rows: np.ndarray) -> np.ndarray:
    """Convert float16 and longdouble, which numba does not support, to float64."""
    return rows.astype(np.float64) if rows.dtype.kind == "f" and rows.dtype.itemsize not in (4, 8) else rows

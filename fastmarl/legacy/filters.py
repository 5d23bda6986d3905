"""Observation filters with the RLlib interface, which workers exchange."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastmarl.core.connectors.mean_std_filter import MeanStdFilter as FilterConnector
from fastmarl.core.connectors.moments import RunningMeanStd
from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.legacy.observation_filter import filtered, merged


class RunningStat(RunningMeanStd):
    """Running moments with the variance of RLlib's `RunningStat`: sample variance (n - 1), float32, 0 for one row."""

    @classmethod
    def of(cls, moments: RunningMeanStd) -> "RunningStat":
        """Return a copy of `moments` as an instance of this class."""
        made = cls(moments.mean.size)
        made._become(moments.count, moments.mean.copy(), moments._m2.copy())
        return made

    @property
    def n(self) -> int:
        """RLlib's name for `count`."""
        return self.count

    @property
    def var(self) -> np.ndarray:
        return (self._m2 / (self.count - 1.0) if self.count > 1 else np.zeros_like(self._m2)).astype(np.float32)


@public("fastmarl.legacy")
class MeanStdFilter:
    """Mean-std observation filter of a policy, with the methods of the RLlib class of the same name.

    Args:
        rs: Statistics for normalising observations, one per Box of the observation space.
        buffer: Statistics of the observations since the last reset of the buffer, one per Box.
        demean: Subtract the mean.
        destd: Divide by the standard deviation.
        clip: Clip results to [-clip, clip]; None for no clipping.
    """

    is_concurrent: bool = False
    no_preprocessor = True  # each Box of a Dict or Tuple space has separate statistics
    rs: list[RunningStat]
    buffer: list[RunningStat]

    def __init__(
        self,
        rs: Sequence[RunningMeanStd],
        buffer: Sequence[RunningMeanStd],
        demean: bool = True,
        destd: bool = True,
        clip: float | None = 10.0,
    ):
        self.demean, self.destd, self.clip = demean, destd, clip
        self._become(rs, buffer)

    def _become(self, rs: Sequence[RunningMeanStd], buffer: Sequence[RunningMeanStd]) -> None:
        self.rs, self.buffer = ([RunningStat.of(moments) for moments in each] for each in (rs, buffer))

    @property
    def running_stats(self) -> list[RunningStat]:
        """RLlib's name for `rs`."""
        return self.rs

    @property
    def shape(self) -> list[tuple[int]]:
        """Shape of the statistics of each Box."""
        return [moments.mean.shape for moments in self.rs]

    def __call__(self, x: Any, update: bool = True) -> np.ndarray:
        """Normalise an observation of a space with a single Box, keeping its dtype.

        Args:
            x: The observation.
            update: First add the observation to `rs` and `buffer`.

        Raises:
            ConfigError: If there are several Boxes, or the observation has the wrong size.
        """
        observation = np.asarray(x)
        if len(self.rs) != 1 or observation.size != self.rs[0].mean.size:
            raise ConfigError(f"expected an observation of a single Box; this filter has Boxes of shapes "
                              f"{self.shape}, got shape {observation.shape}")  # fmt: skip
        rs, buffer = self.rs[0].copy(), self.buffer[0].copy()
        row = observation.reshape(1, -1)
        out = filtered(row, rs, buffer, update, demean=self.demean, destd=self.destd, clip=self.clip)
        if update:
            self._become([rs], [buffer])
        return out.reshape(observation.shape)

    def apply_changes(self, other: "MeanStdFilter", with_buffer: bool = False, *args: Any, **kwargs: Any) -> None:
        """Merge the buffer of the filter `other` into `rs`; if `with_buffer`, also copy that buffer."""
        self._check_like(other.buffer)
        rs = [merged(moments, change) for moments, change in zip(self.rs, other.buffer, strict=True)]
        self._become(rs, other.buffer if with_buffer else self.buffer)

    def sync(self, other: "MeanStdFilter") -> None:
        """Copy the statistics of the filter `other`, including its buffer."""
        self._check_like(other.rs)
        self._become(other.rs, other.buffer)

    def reset_buffer(self) -> None:
        """Clear the statistics in the buffer."""
        self._become(self.rs, [RunningStat(moments.mean.size) for moments in self.rs])

    clear_buffer = reset_buffer

    def copy(self) -> "MeanStdFilter":
        kind = ConcurrentMeanStdFilter if self.is_concurrent else MeanStdFilter
        return kind(self.rs, self.buffer, self.demean, self.destd, self.clip)

    def as_serializable(self) -> "MeanStdFilter":
        """Return a non-concurrent copy."""
        return MeanStdFilter(self.rs, self.buffer, self.demean, self.destd, self.clip)

    def _check_like(self, moments: Sequence[RunningMeanStd]) -> None:
        sizes, given = ([each.mean.size for each in both] for both in (self.rs, moments))
        if sizes != given:
            raise ConfigError(f"expected a filter for Boxes of sizes {sizes}, got sizes {given}")


@public("fastmarl.legacy")
class ConcurrentMeanStdFilter(MeanStdFilter):
    """A `MeanStdFilter` under the name of RLlib's locking variant; it needs no lock, as workers use a single thread."""

    is_concurrent = True


class FilterView(MeanStdFilter):
    """A view that reads and writes the filter of a policy in the runner; returned by `worker.filters`."""

    def __init__(self, connector: FilterConnector):
        self._connector = connector

    @property
    def is_concurrent(self) -> bool:  # type: ignore[override]
        return bool(getattr(self._connector, "is_concurrent", False))

    @property
    def demean(self) -> bool:  # type: ignore[override]
        return self._connector.de_mean_to_zero

    @property
    def destd(self) -> bool:  # type: ignore[override]
        return self._connector.de_std_to_one

    @property
    def clip(self) -> float | None:  # type: ignore[override]
        return self._connector.clip_by_value

    @property
    def rs(self) -> list[RunningStat]:  # type: ignore[override]
        return [RunningStat.of(moments) for moments in self._connector.stats]

    @property
    def buffer(self) -> list[RunningStat]:  # type: ignore[override]
        return [RunningStat.of(moments) for moments in self._connector.delta]

    def _become(self, rs: Sequence[RunningMeanStd], buffer: Sequence[RunningMeanStd]) -> None:
        stats, delta = ([moments.get_state() for moments in each] for each in (rs, buffer))
        # "base" is read only when connectors are merged; workers merge these filter objects instead.
        self._connector.set_state({"stats": stats, "base": stats, "delta": delta})

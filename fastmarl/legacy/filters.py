"""Observation filters of a worker, as objects that workers exchange."""

from collections.abc import Sequence
from typing import Self

from fastmarl.core.connectors.mean_std_filter import MeanStdFilter as FilterConnector
from fastmarl.core.connectors.moments import RunningMoments
from fastmarl.core.errors import ConfigError
from fastmarl.core.public import public


@public("fastmarl.legacy")
class MeanStdFilter:
    """What a policy's filter has counted; the methods are those of RLlib's class of this name.

    Args:
        rs: for each Box of the observation, what observations are normalised by.
        buffer: the same of what was counted since the buffer was last reset, alone.
    """

    def __init__(self, rs: Sequence[RunningMoments], buffer: Sequence[RunningMoments]):
        self.rs = [moments.copy() for moments in rs]
        self.buffer = [moments.copy() for moments in buffer]

    @classmethod
    def of(cls, connector: FilterConnector) -> Self:
        """The filter that samples."""
        return cls(connector.stats, connector.delta)

    def put_into(self, connector: FilterConnector) -> None:
        """Let it sample with this one's statistics."""
        self._check_like(connector.stats)
        rs, buffer = ([moments.get_state() for moments in each] for each in (self.rs, self.buffer))
        # Only merging reads "base", and the worker's filters are merged here.
        connector.set_state({"stats": rs, "base": rs, "delta": buffer})

    def apply_changes(self, other: "MeanStdFilter", with_buffer: bool = False) -> None:
        """Add what another filter has counted in its buffer; `with_buffer`: have its buffer, too."""
        self._check_like(other.buffer)
        for moments, change in zip(self.rs, other.buffer, strict=True):
            moments.merge(change)
        if with_buffer:
            self.buffer = [moments.copy() for moments in other.buffer]

    def sync(self, other: "MeanStdFilter") -> None:
        """Be like another filter, buffer included."""
        self._check_like(other.rs)
        self.rs = [moments.copy() for moments in other.rs]
        self.buffer = [moments.copy() for moments in other.buffer]

    def reset_buffer(self) -> None:
        """Begin to count anew."""
        self.buffer = [RunningMoments(moments.mean.size) for moments in self.rs]

    clear_buffer = reset_buffer

    def copy(self) -> "MeanStdFilter":
        return MeanStdFilter(self.rs, self.buffer)

    as_serializable = copy

    def _check_like(self, moments: Sequence[RunningMoments]) -> None:
        sizes, given = ([each.mean.size for each in both] for both in (self.rs, moments))
        if sizes != given:
            raise ConfigError(f"this filter is for Boxes of {sizes} numbers, got one for {given}")


class FilterView:
    """A policy's filter in the runner, read and written in place: what `worker.filters` has."""

    def __init__(self, connector: FilterConnector):
        self._connector = connector

    def as_serializable(self) -> MeanStdFilter:
        """A copy that can be sent to other workers."""
        return MeanStdFilter.of(self._connector)

    def sync(self, other: MeanStdFilter) -> None:
        other.put_into(self._connector)

    def apply_changes(self, other: MeanStdFilter, with_buffer: bool = False) -> None:
        changed = self.as_serializable()
        changed.apply_changes(other, with_buffer)
        changed.put_into(self._connector)

    def reset_buffer(self) -> None:
        changed = self.as_serializable()
        changed.reset_buffer()
        changed.put_into(self._connector)

    clear_buffer = reset_buffer

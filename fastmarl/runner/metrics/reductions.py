"""Reductions of logged values, with a class for each reduction of the RLlib MetricsLogger."""

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Self

import numpy as np

from fastmarl.runner.metrics.stats import NAN, SeriesStats, Stats, number, plain, without_nan

PERCENTILES = (0, 50, 75, 90, 95, 99, 100)


class MeanStats(SeriesStats):
    """Mean of the values, ignoring NaN."""

    stats_cls_identifier = "mean"

    def reduced(self, values: Sequence[float]) -> float:
        seen = without_nan(values)
        return float(np.mean(seen)) if seen else NAN


class _RunningStats(SeriesStats):
    """Keeps a single reduced value if there is no window."""

    def push(self, value: Any) -> None:
        super().push(value)
        if self.window is None and len(self.values) > 1:
            self.values = [self.reduced(self.values)]


class MinStats(_RunningStats):
    """Minimum of the values, ignoring NaN."""

    stats_cls_identifier = "min"

    def reduced(self, values: Sequence[float]) -> float:
        return min(without_nan(values), default=NAN)


class MaxStats(_RunningStats):
    """Maximum of the values, ignoring NaN."""

    stats_cls_identifier = "max"

    def reduced(self, values: Sequence[float]) -> float:
        return max(without_nan(values), default=NAN)


class SumStats(_RunningStats):
    """Sum of the values, ignoring NaN.

    Args:
        with_throughput: Measure the sum per second since the last report.
    """

    stats_cls_identifier = "sum"
    options = ("window", "with_throughput")

    def __init__(self, with_throughput: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.with_throughput = bool(with_throughput)
        self._since = perf_counter()

    def reduced(self, values: Sequence[float]) -> float:
        seen = without_nan(values)
        return sum(seen) if seen else NAN

    def reduce(self, compile: bool = True) -> Any:
        self._since, reduced = perf_counter(), super().reduce(compile)
        return reduced

    @property
    def has_throughputs(self) -> bool:
        return self.with_throughput

    @property
    def throughputs(self) -> Any:
        return self.peek() / (perf_counter() - self._since) if self.with_throughput else super().throughputs

    def initialize_throughput_reference_time(self, time: float) -> None:
        self._since = time


class LifetimeSumStats(Stats):
    """Sum of all values ever logged; loggers other than the root report the sum since the last report.

    Args:
        with_throughput: Measure the sum per second since the last report and since the last `set_state()`.
    """

    stats_cls_identifier = "lifetime_sum"
    options = ("with_throughput",)

    def __init__(self, with_throughput: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.with_throughput = bool(with_throughput)
        self.initialize_throughput_reference_time(perf_counter())

    def push(self, value: Any) -> None:
        one = number(value)
        if not math.isnan(one):
            self.values = [self.reduced(self.values) + one]

    def reduced(self, values: Sequence[float]) -> float:
        return math.fsum(values) if len(values) > 1 else float(values[0]) if values else 0.0

    def merge(self, incoming_stats: Sequence[Stats]) -> None:
        self.latest_merged = [sum(value for stats in incoming_stats for value in stats.values)]
        self.values = [self.reduced(self.values) + self.latest_merged[0]]

    def reduce(self, compile: bool = True) -> Any:
        reduced = super().reduce(compile)
        self._last_report = perf_counter(), self.reduced(self.values)
        return reduced

    def start_over(self) -> None:
        if not self.is_root:
            self.values = []

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        stats = super().from_state(state)
        stats.initialize_throughput_reference_time(perf_counter())
        return stats

    @property
    def has_throughputs(self) -> bool:
        return self.with_throughput

    @property
    def throughputs(self) -> Any:
        if not self.with_throughput:
            return super().throughputs
        since = {"throughput_since_last_reduce": self._last_report}
        if self.is_root:
            since["throughput_since_last_restore"] = self._last_restore
        now, total = perf_counter(), self.reduced(self.values)
        return {name: (total - before) / (now - begun) for name, (begun, before) in since.items()}

    def initialize_throughput_reference_time(self, time: float) -> None:
        self._last_report = self._last_restore = time, self.reduced(self.values)


class EmaStats(Stats):
    """Exponential moving average that continues across reports. Merging takes the mean over loggers.

    Args:
        ema_coeff: Weight of a new value, from 0 to 1.
    """

    stats_cls_identifier = "ema"
    options = ("ema_coeff",)

    def __init__(self, ema_coeff: float = 0.01, **kwargs: Any):
        super().__init__(**kwargs)
        self.ema_coeff = ema_coeff

    def push(self, value: Any) -> None:
        one = number(value)
        if not math.isnan(one):
            self.values = [self.ema_coeff * one + (1.0 - self.ema_coeff) * self.values[0] if self.values else one]

    def reduced(self, values: Sequence[float]) -> float:
        return values[0] if len(values) == 1 else MeanStats().reduced(values)

    def start_over(self) -> None:
        if not self.is_leaf:
            self.values = []


class PercentilesStats(SeriesStats):
    """Percentiles of the values since the last report as a dict, with None for each if there are no values.

    Args:
        percentiles: Numbers from 0 to 100; None or True means 0, 50, 75, 90, 95, 99 and 100.
    """

    stats_cls_identifier = "percentiles"
    options = ("window", "percentiles")

    def __init__(self, percentiles: Sequence[float] | bool | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.percentiles = list(PERCENTILES if percentiles is None or percentiles is True else percentiles or ())
        if not all(isinstance(each, (int, float, np.number)) and 0 <= each <= 100 for each in self.percentiles):
            raise ValueError(f"percentiles must be numbers from 0 to 100, got {percentiles!r:.100}")

    def push(self, value: Any) -> None:
        if math.isnan(number(value)):
            raise ValueError("expected a number, got NaN")
        super().push(value)

    def listed(self, values: Sequence[float]) -> list[float]:
        return sorted(values)

    def reduced(self, values: Sequence[float]) -> dict[float, float | None]:
        in_order, found = sorted(values), dict.fromkeys(self.percentiles)
        for percentile in self.percentiles if in_order else ():
            below, part = divmod(percentile / 100 * (len(in_order) - 1), 1)
            value = in_order[int(below)]
            found[percentile] = value * (1 - part) + in_order[int(below) + 1] * part if part else value
        return found

    def __float__(self) -> float:
        raise ValueError("percentiles can't be converted to a single number")

    __int__ = __float__  # type: ignore[assignment]


class ItemStats(Stats):
    """Last object logged since the last report, or None if there was none."""

    stats_cls_identifier = "item"

    def push(self, value: Any) -> None:
        self.values = [plain(value)]

    def reduced(self, values: Sequence[Any]) -> Any:
        return values[-1] if values else None

    def merge(self, incoming_stats: Sequence[Stats]) -> None:
        super().merge(incoming_stats)
        self.values = self.values[-1:]

    def _latest(self) -> Sequence[Any]:
        return self.values


class ItemSeriesStats(SeriesStats):
    """List of all objects logged since the last report."""

    stats_cls_identifier = "item_series"

    def push(self, value: Any) -> None:
        self.values.append(plain(value))

    def listed(self, values: Sequence[Any]) -> list[Any]:
        return list(values)

    reduced = listed

    def peek(self, compile: bool = True, latest_merged_only: bool = False) -> Any:
        values = super().peek(compile, latest_merged_only)
        return values if values or not compile else NAN


STATS: dict[str, type[Stats]] = {
    kind.stats_cls_identifier: kind
    for kind in (
        MeanStats,
        EmaStats,
        MinStats,
        MaxStats,
        SumStats,
        LifetimeSumStats,
        PercentilesStats,
        ItemStats,
        ItemSeriesStats,
    )
}

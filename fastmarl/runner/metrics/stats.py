"""Values logged under a single key of a MetricsLogger; `reductions.py` has the subclasses."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

NAN = math.nan  # a single object, so that reports containing it equal their copies


class Stats:
    """Collects the values logged under a single key and reduces them.

    Leaves receive values through `push()`; all others merge the values of leaves through `merge()`. A subclass, which
    users can add to `stats_cls_lookup`, lists its arguments in `options` and defines at least `reduced()`.

    Args:
        is_root: True for a logger that keeps lifetime sums across reports.
        is_leaf: True if values are logged here, False if they are merged from other objects.

    Attributes:
        stats_cls_identifier: Name of the reduction.
        options: Names of the other constructor arguments, which are also attributes.
        values: Pushed or merged values included in the next report.
        latest_merged: Values added by the last `merge()`, or None before the first.
    """

    stats_cls_identifier = ""
    options: tuple[str, ...] = ()

    def __init__(self, *, is_root: bool = False, is_leaf: bool = True):
        self.is_root, self.is_leaf = is_root, is_leaf
        self.latest_merged: list[Any] | None = None
        self.values: Any = []

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.peek()})"

    def __float__(self) -> float:
        return float(self.peek())

    def __int__(self) -> int:
        return int(self.peek())

    def push(self, value: Any) -> None:
        """Add a value.

        Raises:
            ValueError: If this reduction does not support the value.
        """
        self.values.append(number(value))

    def reduced(self, values: Sequence[Any]) -> Any:
        """Return the value to report for these values."""
        raise NotImplementedError

    def listed(self, values: Sequence[Any]) -> list[Any]:
        """Return the list of values that other loggers merge instead of these."""
        return [self.reduced(values)]

    def peek(self, compile: bool = True, latest_merged_only: bool = False) -> Any:
        """Return the reduced value without changing anything.

        Args:
            compile: Return a single value, not a list.
            latest_merged_only: Reduce only the values added by the last `merge()`.

        Raises:
            ValueError: If `latest_merged_only` is set for a leaf.
        """
        values = self._latest() if latest_merged_only else self.values
        return self.reduced(values) if compile else self.listed(values)

    def _latest(self) -> Sequence[Any]:
        if self.is_leaf:
            raise ValueError(f"latest_merged_only needs values from aggregate(), but {self!r} has logged values")
        return self.latest_merged or []

    def reduce(self, compile: bool = True) -> Any:
        """Reset the values, and return the reduced value or (if not `compile`) a Stats object for `aggregate()`."""
        other = None if compile else self.clone()
        value = self.reduced(self.values)
        if other is not None:
            other.values = self.listed(self.values)
        self.start_over()
        return value if other is None else other

    def start_over(self) -> None:
        """Drop the reported values."""
        self.values = []

    def merge(self, incoming_stats: Sequence["Stats"]) -> None:
        """Add the reduced values of other objects of this class."""
        self.latest_merged = [value for stats in incoming_stats for value in stats.values]
        self.values = [*self.values, *self.latest_merged]

    def pushed(self) -> list[Any]:
        """Return the values that turn a new leaf into a copy of this one when pushed to it."""
        return list(self.values)

    def clone(self, init_overrides: dict[str, Any] | None = None) -> Self:
        """Return an empty object with the same constructor arguments, except those in `init_overrides`."""
        own = {name: getattr(self, name) for name in ("is_root", "is_leaf", *self.options)}
        return type(self)(**{**own, **(init_overrides or {})})

    def get_state(self) -> dict[str, Any]:
        """Return the complete state, which is plain data if the values are."""
        return {
            "stats_cls_identifier": self.stats_cls_identifier,
            **{name: getattr(self, name) for name in ("is_root", "is_leaf", *self.options)},
            "values": list(self.values),
            "latest_merged": self.latest_merged,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Create an object that continues from a result of `get_state()`."""
        stats = cls(**{name: state[name] for name in ("is_root", "is_leaf", *cls.options)})
        stats.latest_merged = state["latest_merged"]
        stats.values.extend(state["values"])
        return stats

    # Throughputs.

    @property
    def has_throughputs(self) -> bool:
        """True if `throughputs` is measured."""
        return False

    @property
    def throughputs(self) -> Any:
        """Sum of the logged values per second."""
        raise ValueError(
            f"{self!r} has no throughput; log with reduce='sum' or 'lifetime_sum' and with_throughput=True"
        )

    def initialize_throughput_reference_time(self, time: float) -> None:
        """Measure throughput starting at this `time.perf_counter()` value."""


class SeriesStats(Stats):
    """Reduces the values since the last report.

    Args:
        window: Number of latest values to use from each leaf; None or inf for all.
    """

    options: tuple[str, ...] = ("window",)

    def __init__(self, window: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        if window is not None and not (isinstance(window, (int, float)) and window >= 1):
            raise ValueError(f"window must be None, inf or a number >= 1, got {window!r:.100}")
        self.window = None if window in (None, math.inf) else int(window)  # type: ignore[arg-type]
        self.start_over()

    def start_over(self) -> None:
        self.values = deque(maxlen=self.window) if self.window and self.is_leaf else []


def plain(value: Any) -> Any:
    """Convert a tensor to a number or an array on the CPU; return other values unchanged."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
        return value.item() if value.size == 1 else value
    return value


def number(value: Any) -> Any:
    """Convert a number, or an array or tensor with a single element, to an int or a float.

    Raises:
        ValueError: If `value` is not a number.
        OverflowError: If the number is too large for a float.
    """
    if type(value) is float:
        return value
    if type(value) is int:
        float(value)
        return value
    array = np.asarray(plain(value))
    if array.size != 1 or array.dtype.kind not in "bfiu":
        raise ValueError(f"expected a single number, got {value!r:.200}")
    return +array.item()


def without_nan(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]

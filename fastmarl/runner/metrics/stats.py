"""Values that were logged under one key of a MetricsLogger; `reductions.py` has the subclasses."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

NAN = math.nan  # one object, so that reports with it equal their copies


class Stats:
    """Collects the values that were logged under one key, and reduces them.

    A leaf gets values by `push()`, others merge those of leaves by `merge()`. Subclasses, which users can add in
    `stats_cls_lookup`, name their arguments in `options` and define at least `reduced()`.

    Args:
        is_root: Keep the values of other loggers' `reduce()` for ever.
        is_leaf: Values are logged here, not merged.

    Attributes:
        stats_cls_identifier: Name of the reduction.
        options: Names of the constructor's other arguments, which are attributes, too.
        values: Pushed or merged values that still count.
        latest_merged: Values that the last `merge()` added; None: there was none.
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
            ValueError: If this reduction can't take the value.
        """
        self.values.append(number(value))

    def reduced(self, values: Sequence[Any]) -> Any:
        """Reduce values to the one that is reported."""
        raise NotImplementedError

    def listed(self, values: Sequence[Any]) -> list[Any]:
        """Reduce values to the list that other loggers merge."""
        return [self.reduced(values)]

    def peek(self, compile: bool = True, latest_merged_only: bool = False) -> Any:
        """Return the reduced value without changing anything.

        Args:
            compile: Return one value, not a list of one or more.
            latest_merged_only: Reduce only the values that the last `merge()` added.

        Raises:
            ValueError: If `latest_merged_only` is set for a leaf.
        """
        values = self._latest() if latest_merged_only else self.values
        return self.reduced(values) if compile else self.listed(values)

    def _latest(self) -> Sequence[Any]:
        if self.is_leaf:
            raise ValueError(f"values were logged to {self!r}, none were merged: latest_merged_only needs aggregate()")
        return self.latest_merged or []

    def reduce(self, compile: bool = True) -> Any:
        """Return the reduced value, or (without `compile`) a Stats object for `aggregate()`; then start over."""
        other = None if compile else self.clone()
        value = self.reduced(self.values)
        if other is not None:
            other.values = self.listed(self.values)
        self.start_over()
        return value if other is None else other

    def start_over(self) -> None:
        """Drop the values that were reported."""
        self.values = []

    def merge(self, incoming_stats: Sequence["Stats"]) -> None:
        """Add the reduced values of other objects of this class."""
        self.latest_merged = [value for stats in incoming_stats for value in stats.values]
        self.values = [*self.values, *self.latest_merged]

    def pushed(self) -> list[Any]:
        """Return values that make another leaf equal to this one when pushed there."""
        return list(self.values)

    def clone(self, init_overrides: dict[str, Any] | None = None) -> Self:
        """Return an object of this class without values; `init_overrides` replace arguments of its constructor."""
        own = {name: getattr(self, name) for name in ("is_root", "is_leaf", *self.options)}
        return type(self)(**{**own, **(init_overrides or {})})

    def get_state(self) -> dict[str, Any]:
        """Return the whole state, which is plain data if the values are."""
        return {
            "stats_cls_identifier": self.stats_cls_identifier,
            **{name: getattr(self, name) for name in ("is_root", "is_leaf", *self.options)},
            "values": list(self.values),
            "latest_merged": self.latest_merged,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Make an object that continues from a state of `get_state()`."""
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
        """Measure throughput from this `time.perf_counter()` on."""


class SeriesStats(Stats):
    """Reduces the values since the last report.

    Args:
        window: Number of latest values of each leaf that count; None or inf: all.
    """

    options: tuple[str, ...] = ("window",)

    def __init__(self, window: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        if window is not None and not (isinstance(window, (int, float)) and window >= 1):
            raise ValueError(f"window must be None, inf or at least 1, got {window!r:.100}")
        self.window = None if window in (None, math.inf) else int(window)  # type: ignore[arg-type]
        self.start_over()

    def start_over(self) -> None:
        self.values = deque(maxlen=self.window) if self.window and self.is_leaf else []


def plain(value: Any) -> Any:
    """Convert a tensor to a number or an array on the CPU; return other values as they are."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
        return value.item() if value.size == 1 else value
    return value


def number(value: Any) -> Any:
    """Convert a number, or an array or tensor with one element, to an int or a float.

    Raises:
        ValueError: If `value` is not a number.
        OverflowError: If the number is beyond the largest float.
    """
    if type(value) is float:
        return value
    if type(value) is int:
        float(value)
        return value
    array = np.asarray(plain(value))
    if array.size != 1 or array.dtype.kind not in "bfiu":
        raise ValueError(f"expected one number, got {value!r:.200}")
    return +array.item()


def without_nan(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]

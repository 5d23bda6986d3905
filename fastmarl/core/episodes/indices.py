"""Implements the arguments `indices`, `neg_index_as_lookback`, `fill` and `one_hot_discrete` of episode getters.

Items of a column are addressed by time. For a single agent, times are row indices of its columns. For all agents of an
episode, times are env steps, some of which may have no item of an agent.
"""

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from fastmarl.core.spaces.structs import map_struct

Indices = int | slice | list[int] | None
Times = int | range | list[int]
RowIndex = slice | np.ndarray  # an int64 array may contain -1 for missing items


class Timeline(NamedTuple):
    """The times `first` to `end - 1`. Index 0 refers to the time `origin`; earlier times are lookback."""

    first: int
    origin: int
    end: int

    def times(self, indices: Indices, neg_index_as_lookback: bool, *, clip: bool) -> Times:
        """Convert `indices` to times; if `clip`, slices are clipped to the timeline."""
        if indices is None:
            return range(self.origin, self.end)
        if isinstance(indices, slice):
            return self._range(indices, neg_index_as_lookback, clip)
        if isinstance(indices, (list, np.ndarray)):
            return [self._time(index, neg_index_as_lookback) for index in indices]
        return self._time(indices, neg_index_as_lookback)

    def has(self, time: int) -> bool:
        return self.first <= time < self.end

    def check(self, times: Iterable[int]) -> None:
        """Raise IndexError if a time is outside the timeline."""
        for time in times:
            if not self.has(time):
                raise IndexError(f"index {time - self.origin} (from the start of the chunk) is outside the recorded "
                                 f"range ({self}); pass `fill` to fill in missing items")  # fmt: skip

    def __str__(self) -> str:
        first, last = self.first - self.origin, self.end - self.origin - 1
        return f"{first} to {last}" if first <= last else "empty"

    def _time(self, index: int, neg_index_as_lookback: bool) -> int:
        index = operator.index(index)
        return index + (self.origin if index >= 0 or neg_index_as_lookback else self.end)

    def _range(self, slice_: slice, neg_index_as_lookback: bool, clip: bool) -> range:
        step = 1 if slice_.step is None else operator.index(slice_.step)
        start, stop = (self.origin, self.end) if step > 0 else (self.end - 1, self.origin - 1)
        if slice_.start is not None:
            start = self._time(slice_.start, neg_index_as_lookback)
        if slice_.stop is not None:
            stop = self._time(slice_.stop, neg_index_as_lookback)
        if clip and step > 0:
            start, stop = max(start, self.first), min(stop, self.end)
        elif clip:
            start, stop = min(start, self.end - 1), max(stop, self.first - 1)
        return range(start, stop, step)


class Column(NamedTuple):
    """All items in order, including the lookback, as an array, nested arrays, or a list.

    `with_start` is True if values of Discrete spaces count from the space's `start`, as observations do; raw actions
    count from 0.
    """

    data: Any
    space: gym.Space[Any] | None = None
    with_start: bool = False


def look_up(
    column: Column,
    timeline: Timeline,
    indices: Indices,
    neg_index_as_lookback: bool,
    fill: Any = None,
    one_hot: bool = False,
) -> Any:
    """Return the items at `indices` of a column that has one row per time of the timeline.

    Raises:
        IndexError: If there is no item at an index and `fill` is None.
        ValueError: See `select()`.
    """
    times = timeline.times(indices, neg_index_as_lookback, clip=fill is None)
    if isinstance(times, int):
        if fill is None:
            timeline.check([times])
        return select(column, times if timeline.has(times) else -1, fill, one_hot)
    if isinstance(times, list) and fill is None:
        timeline.check(times)
    return select(column, _rows_of(times, timeline, fill is not None), fill, one_hot)


def _rows_of(times: range | list[int], timeline: Timeline, keep_missing: bool) -> RowIndex:
    """Convert times that are row indices to a `RowIndex`; times outside the timeline become -1."""
    if isinstance(times, range) and times.step > 0 and not keep_missing:
        return slice(times.start, max(times.stop, times.start), times.step)
    rows = _as_array(times)
    return np.where((rows >= timeline.first) & (rows < timeline.end), rows, -1)


def rows_at(times: range | list[int], env_ts: np.ndarray, keep_missing: bool) -> RowIndex:
    """Return the rows at these env steps; steps without a row yield -1 if `keep_missing`, else nothing.

    Args:
        env_ts: Env step of each row, int64, strictly increasing.
    """
    if isinstance(times, range) and times.step == 1 and not keep_missing:
        start, stop = np.searchsorted(env_ts, (times.start, times.stop))
        return slice(int(start), max(int(start), int(stop)))
    wanted = _as_array(times)
    rows = np.searchsorted(env_ts, wanted)
    found = rows < len(env_ts)
    found[found] = env_ts[rows[found]] == wanted[found]
    return np.where(found, rows, -1) if keep_missing else rows[found]


def has_any(rows: RowIndex) -> bool:
    """Return True if `rows_at()` found any rows."""
    return rows.start < rows.stop if isinstance(rows, slice) else len(rows) > 0


def select(column: Column, rows: RowIndex | int, fill: Any = None, one_hot: bool = False) -> Any:
    """Return the items in these rows, with `fill` for -1. Slices return views, unless `one_hot`.

    Raises:
        ValueError: If `one_hot` is set and the space is unknown.
    """
    if isinstance(rows, int) and rows < 0:
        return item(select(column, np.array([rows]), fill, one_hot), 0)
    if isinstance(column.data, list):
        if isinstance(rows, np.ndarray):
            return [column.data[row] if row >= 0 else fill for row in rows.tolist()]
        return column.data[rows]
    values = map_struct(lambda leaf: _take(leaf, rows), column.data)
    if one_hot:
        if column.space is None:
            raise ValueError("one_hot_discrete=True needs the space of these values, but the episode does not have "
                             "it; pass spaces to its constructor")  # fmt: skip
        values = _one_hot(values, column.space, column.with_start)
    if isinstance(rows, np.ndarray) and (missing := rows < 0).any():
        values = map_struct(lambda leaf: _filled(leaf, missing, fill, column.space is not None), values)
    return values


def item(values: Any, i: int) -> Any:
    """Return item `i` of the items returned by `select()`."""
    return values[i] if isinstance(values, list) else map_struct(lambda leaf: leaf[i], values)


def _as_array(times: range | list[int]) -> np.ndarray:
    if isinstance(times, range):
        return np.arange(times.start, times.stop, times.step, dtype=np.int64)
    return np.array(times, np.int64)


def _take(leaf: np.ndarray, rows: RowIndex | int) -> Any:
    if isinstance(rows, np.ndarray) and not len(leaf):
        return np.zeros((len(rows), *leaf.shape[1:]), leaf.dtype)
    return leaf[rows]


def _filled(leaf: np.ndarray, missing: np.ndarray, fill: Any, keep_float64: bool) -> np.ndarray:
    if not keep_float64:
        leaf = leaf.astype(np.result_type(leaf.dtype, fill), copy=False)
    leaf[missing] = fill
    return leaf


def _one_hot(values: Any, space: gym.Space[Any], with_start: bool) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _one_hot(values[key], entry, with_start) for key, entry in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_one_hot(value, entry, with_start) for value, entry in zip(values, space.spaces, strict=True))
    if isinstance(space, gym.spaces.Discrete):
        return _hot(np.asarray(values), int(space.n), int(space.start) if with_start else 0)
    if isinstance(space, gym.spaces.MultiDiscrete):
        values = np.asarray(values)
        entries = values.reshape(*values.shape[: values.ndim - space.nvec.ndim], -1)
        starts = space.start.ravel().tolist() if with_start else [0] * space.nvec.size
        sizes = zip(space.nvec.ravel().tolist(), starts, strict=True)
        return np.concatenate([_hot(entries[..., i], n, start) for i, (n, start) in enumerate(sizes)], axis=-1)
    return values


def _hot(numbers: np.ndarray, n: int, start: int) -> np.ndarray:
    is_hot: np.ndarray = numbers[..., None] == np.arange(start, start + n)
    return is_hot.astype(np.float32)

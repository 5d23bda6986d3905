"""Growable, writable columns for agent episodes built by hand."""

import time
from typing import Any, Self

import numpy as np

from fastmarl.core.episodes.sources import Source, array_of, blank_like, check_held, write_rows
from fastmarl.core.errors import EpisodeError
from fastmarl.core.spaces.structs import map_struct

LEAST_ROOM = 8  # items


class GrowingColumn:
    """A column of items that all have the same nesting, stored in arrays with spare capacity.

    Args:
        values: Nested arrays [n, ...], which are copied; None if there are no items yet.
        n: Number of items.
    """

    __slots__ = ("_room", "n")

    def __init__(self, values: Any = None, n: int = 0):
        self._room = map_struct(np.array, values) if n else None
        self.n = n

    def append(self, item: Any, what: str) -> None:
        """Append a copy of `item`.

        Raises:
            EpisodeError: If its structure or shape differs from earlier items, or no dtype can represent all items;
                nothing is added then.
        """
        if self._room is None:
            self._room = map_struct(lambda leaf: _room_for(leaf, what), item)
        self._room = _with_item(self._room, item, self.n, what)
        self.n += 1

    def values(self) -> Any:
        """Return views [n, ...], nested like the items."""
        return np.zeros(0) if self._room is None else map_struct(lambda leaf: leaf[: self.n], self._room)


def _room_for(item: Any, what: str) -> np.ndarray:
    first = array_of(item, what)
    return np.empty((LEAST_ROOM, *first.shape), first.dtype)


def _with_item(room: Any, item: Any, n: int, what: str) -> Any:
    """Write the item at index n; return the arrays, enlarged if necessary."""
    if isinstance(room, dict):
        if not isinstance(item, dict) or item.keys() != room.keys():
            raise EpisodeError(f"{what}: expected a dict with the keys {list(room)}, like earlier items, got "
                               f"{item!r:.200}")  # fmt: skip
        return {key: _with_item(entry, item[key], n, what) for key, entry in room.items()}
    if isinstance(room, tuple):
        if not isinstance(item, (tuple, list)) or len(item) != len(room):
            raise EpisodeError(f"{what}: expected a tuple of {len(room)} entries, like earlier items, got "
                               f"{item!r:.200}")  # fmt: skip
        return tuple(_with_item(*pair, n, what) for pair in zip(room, item, strict=True))
    value = array_of(item, what)
    if value.shape != room.shape[1:]:
        raise EpisodeError(f"{what}: expected shape {room.shape[1:]}, like earlier items, got {value.shape}")
    dtype = room.dtype if value.dtype == room.dtype else _common_dtype(room[:n], value, what)
    if n == len(room) or dtype != room.dtype:
        larger = np.empty((max(LEAST_ROOM, 2 * n), *value.shape), dtype)
        larger[:n] = room[:n]
        room = larger
    room[n] = value[()]
    return room


def _common_dtype(column: np.ndarray, value: np.ndarray, what: str) -> np.dtype:
    """Return a dtype that can represent both a column and a value of a different dtype."""
    try:
        dtype = np.result_type(column.dtype, value.dtype)
    except TypeError:
        dtype = column.dtype
    if dtype.kind == "O":  # would accept any value, but the other items are not objects
        dtype = column.dtype
    check_held(dtype, column, what)
    check_held(dtype, value[None], what)
    return dtype


class GrowingSource:
    """A `Source` that steps can be added to."""

    __slots__ = (
        "_actions", "_env_ts", "_extras", "_infos", "_last_added_at", "_observations", "_rewards", "_started_at"
    )  # fmt: skip

    def __init__(self) -> None:
        self._observations, self._env_ts = GrowingColumn(), GrowingColumn()
        self._actions, self._rewards = GrowingColumn(), GrowingColumn()
        self._infos: list[dict[str, Any]] = []
        self._extras: dict[str, GrowingColumn] = {}
        self._started_at: float | None = None
        self._last_added_at: float | None = None

    @classmethod
    def of(cls, source: Source) -> Self:
        """Create one with copies of another source's columns."""
        made, n = cls(), source.n_obs
        made._observations = GrowingColumn(source.observations(), n)
        made._env_ts = GrowingColumn(source.env_ts(), n)
        made._infos = list(source.infos())
        if n > 1:
            made._actions = GrowingColumn(source.actions(), n - 1)
            made._rewards = GrowingColumn(source.rewards(), n - 1)
            made._extras = {key: GrowingColumn(source.extra(key), n - 1) for key in source.extra_keys()}
        return made

    def begin(self, observation: Any, env_t: int, info: dict[str, Any]) -> None:
        """Add the first observation and start the clock."""
        self._observe(observation, env_t, info)
        self._started_at = time.perf_counter()

    def add(
        self, observation: Any, env_t: int, info: dict[str, Any], action: Any, reward: float, extras: dict[str, Any]
    ) -> None:
        """Add a transition. Missing outputs are filled with blanks (NaN or 0).

        Raises:
            EpisodeError: If a value does not match the existing columns; nothing is added then.
        """
        n, known = self._actions.n, list(self._extras)
        try:
            self._actions.append(action, "action")
            for key, value in extras.items():
                column = self._extras.get(key)
                if column is None:
                    blank = blank_like(map_struct(lambda leaf: np.asarray(leaf)[None], value), n, key)
                    column = self._extras[key] = GrowingColumn(blank, n)
                column.append(value, f"extra model output {key!r}")
            self._observe(observation, env_t, info)
        except BaseException:
            self._extras = {key: self._extras[key] for key in known}
            for column in (self._actions, *self._extras.values()):
                column.n = n
            raise
        self._rewards.append(np.float64(reward), "reward")
        for key, column in self._extras.items():
            if column.n == n:
                column.append(map_struct(lambda leaf: leaf[0], blank_like(column.values(), 1, key)), key)
        self._last_added_at = time.perf_counter()
        if self._started_at is None:
            self._started_at = self._last_added_at

    def duration_s(self) -> float:
        """Return the seconds between the first and the latest addition."""
        return (
            0.0 if self._last_added_at is None or self._started_at is None else self._last_added_at - self._started_at
        )

    def _observe(self, observation: Any, env_t: int, info: dict[str, Any]) -> None:
        self._observations.append(observation, "observation")
        self._env_ts.append(np.int64(env_t), "env step")
        self._infos.append(info)

    def put(self, what: str, key: str | None, rows: np.ndarray, values: Any) -> None:
        """Write items of a column in place; see `SingleAgentEpisode.put()`."""
        if what == "infos":
            for row, info in zip(rows.tolist(), values, strict=True):
                self._infos[row] = info
        else:
            column = self.extra(key) if key is not None else getattr(self, what)()
            write_rows(column, rows, values)

    @property
    def n_obs(self) -> int:
        return self._env_ts.n

    def observations(self) -> Any:
        return self._observations.values()

    def env_ts(self) -> np.ndarray:
        env_ts: np.ndarray = self._env_ts.values()
        return env_ts if self._env_ts.n else env_ts.astype(np.int64)

    def infos(self) -> list[dict[str, Any]]:
        return self._infos

    def actions(self) -> Any:
        return self._actions.values()

    def rewards(self) -> np.ndarray:
        rewards: np.ndarray = self._rewards.values()
        return rewards

    def extra_keys(self) -> tuple[str, ...]:
        return tuple(self._extras)

    def extra(self, key: str) -> Any:
        return self._extras[key].values()

    def compact(self) -> None:
        """Do nothing, since these columns do not share memory with a block."""

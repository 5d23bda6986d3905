"""Column storage of `SingleAgentEpisode`: plain arrays, or several sources concatenated.

A source implements `Source`. The source that reads the rows of a lane is in `lane_source.py`.
"""

from typing import Any, Protocol

import numpy as np

from fastmarl.core.errors import EpisodeError
from fastmarl.core.spaces.columns import blank_value
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.core.spaces.values import unheld

FLOAT64 = np.dtype(np.float64)


class Source(Protocol):
    """Columns of n_obs observations and the n_obs - 1 transitions between them. Arrays it has returned never change.

    `compact()` copies columns that are views of larger arrays, so that those can be freed.
    """

    @property
    def n_obs(self) -> int: ...
    def observations(self) -> Any: ...
    def env_ts(self) -> np.ndarray: ...
    def infos(self) -> list[dict[str, Any]]: ...
    def actions(self) -> Any: ...
    def rewards(self) -> np.ndarray: ...
    def extra_keys(self) -> tuple[str, ...]: ...
    def compact(self) -> None: ...
    def extra(self, key: str) -> Any: ...


class ArraySource:
    """Columns stored in arrays, which are not copied.

    Args:
        observations: Array or nested dicts and tuples of arrays, [n_obs, ...].
        env_ts: Env step (since the reset) of each observation, int64 [n_obs], strictly increasing.
        actions: Nested like observations, [n_obs - 1, ...].
        rewards: float64 [n_obs - 1].
        infos: n_obs dicts; None if all are empty.
        extras: Extra output key -> array, nested like actions.
    """

    __slots__ = ("_actions", "_env_ts", "_extras", "_infos", "_observations", "_rewards")

    def __init__(
        self,
        *,
        observations: Any,
        env_ts: np.ndarray,
        actions: Any,
        rewards: np.ndarray,
        infos: list[dict[str, Any]] | None = None,
        extras: dict[str, Any] | None = None,
    ):
        self._observations = observations
        self._env_ts = env_ts
        self._actions = actions
        self._rewards = rewards
        self._infos = [{} for _ in range(len(env_ts))] if infos is None else infos
        self._extras = extras or {}

    @property
    def n_obs(self) -> int:
        return len(self._env_ts)

    def observations(self) -> Any:
        return self._observations

    def env_ts(self) -> np.ndarray:
        return self._env_ts

    def infos(self) -> list[dict[str, Any]]:
        return self._infos

    def actions(self) -> Any:
        return self._actions

    def rewards(self) -> np.ndarray:
        return self._rewards

    def extra_keys(self) -> tuple[str, ...]:
        return tuple(self._extras)

    def extra(self, key: str) -> Any:
        return self._extras[key]

    def compact(self) -> None:
        self._observations, self._actions = map_struct(owned, self._observations), map_struct(owned, self._actions)
        self._env_ts, self._rewards = owned(self._env_ts), owned(self._rewards)
        self._extras = map_struct(owned, self._extras)


class JoinedSource:
    """Concatenated sources; each starts with the last observation of the previous one.

    Args:
        sources: Pairs of (source, length of its lookback, which is skipped).
    """

    __slots__ = ("sources",)

    def __init__(self, sources: list[tuple[Source, int]]):
        self.sources = sources

    @property
    def n_obs(self) -> int:
        return 1 + sum(source.n_obs - 1 - skip for source, skip in self.sources)

    def observations(self) -> Any:
        return joined([_cut(source.observations(), rows) for source, rows in self._rows_of_observations()])

    def env_ts(self) -> np.ndarray:
        return np.concatenate([source.env_ts()[rows] for source, rows in self._rows_of_observations()])

    def infos(self) -> list[dict[str, Any]]:
        return [info for source, rows in self._rows_of_observations() for info in source.infos()[rows]]

    def actions(self) -> Any:
        return joined([_cut(source.actions(), slice(skip, None)) for source, skip in self._with_steps()])

    def rewards(self) -> np.ndarray:
        return np.concatenate([source.rewards()[skip:] for source, skip in self.sources])

    def extra_keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for source, _ in self.sources for key in source.extra_keys()))

    def extra(self, key: str) -> Any:
        """Return an extra output, with blanks for sources that do not have it."""
        model = next((source.extra(key) for source, _ in self._with_steps() if key in source.extra_keys()), None)
        if model is None:
            raise KeyError(key)
        return joined([
            _cut(source.extra(key), slice(skip, None)) if key in source.extra_keys()
            else blank_like(model, source.n_obs - 1 - skip, key)
            for source, skip in self._with_steps()
        ])  # fmt: skip

    def compact(self) -> None:
        for source, _ in self.sources:
            source.compact()

    def _with_steps(self) -> list[tuple[Source, int]]:
        """Return the sources with steps; without steps, the structure of actions is unknown."""
        having = [(source, skip) for source, skip in self.sources if source.n_obs - 1 > skip]
        return having or self.sources[:1]

    def _rows_of_observations(self) -> list[tuple[Source, slice]]:
        """Return pairs (source, slice of its observations), without last observations that the next source repeats."""
        *others, (last, skip) = self.sources
        return [*((source, slice(before, -1)) for source, before in others), (last, slice(skip, None))]


def owned(array: np.ndarray) -> np.ndarray:
    """Return the array, or a copy if it is a view."""
    return array if array.base is None else array.copy()


def _cut(struct: Any, rows: slice) -> Any:
    return map_struct(lambda leaf: leaf[rows], struct)


def blank_like(struct: Any, n: int, name: str) -> Any:
    """Return n blank rows with the structure, dtypes and shapes of `struct`, the column `name`."""
    return map_struct(lambda leaf: np.full((n, *leaf.shape[1:]), blank_value(name, leaf.dtype), leaf.dtype), struct)


def joined(structs: list[Any]) -> Any:
    """Concatenate columns of the same structure."""
    first = structs[0]
    if isinstance(first, dict):
        return {key: joined([struct[key] for struct in structs]) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(joined(list(items)) for items in zip(*structs, strict=True))
    return np.concatenate(structs)


def check_held(dtype: np.dtype, given: np.ndarray, what: str) -> None:
    """Raise EpisodeError if `dtype` cannot represent the values `given`, described by `what`."""
    if given.dtype != dtype and (is_unheld := unheld(dtype, given)).any():
        raise EpisodeError(
            f"{what}: {dtype} cannot represent {given[is_unheld][0]!r:.200} of dtype {given.dtype}; convert it first"
        )


def as_rewards(values: Any, what: str) -> np.ndarray:
    """Return rewards as float64, with the shape of `values`.

    Raises:
        EpisodeError: If they are not numbers that float64 can represent.
    """
    given = array_of(values, what)
    check_held(FLOAT64, given, what)
    return given.astype(FLOAT64, copy=False)


def as_reward(value: Any, what: str) -> float:
    """Return a reward as a float. Raises EpisodeError if it is not a number that float64 can represent."""
    given = as_rewards(value, what)
    if given.size != 1:
        raise EpisodeError(f"{what}: expected one number, got {value!r:.200}")
    return float(given.item())


def array_of(value: Any, what: str) -> np.ndarray:
    """Convert a value to an array. Raises EpisodeError if NumPy cannot."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise EpisodeError(f"{what}: expected an array or a number, got {value!r:.200}: {error}") from error


def write_rows(column: Any, rows: np.ndarray, values: Any) -> None:
    """Write `values` [k, ...] to `rows` (int64 [k]) of a column with the same structure."""
    new = dict(flatten_struct(values))
    for path, leaf in flatten_struct(column):
        leaf[rows] = new[path]

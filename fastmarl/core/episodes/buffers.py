"""Columns of an agent episode as RLlib-compatible objects, such as `steps.observations` and `steps.rewards`."""

from typing import Any, Protocol

import gymnasium as gym

from fastmarl.core.episodes.indices import Column, Indices, Timeline, look_up
from fastmarl.core.spaces.structs import flatten_struct


class HasColumns(Protocol):
    """The methods of `SingleAgentEpisode` that its buffers use."""

    lookback: int

    def column(self, what: str, key: str | None = None) -> Column: ...
    def get(self, what: str, key: str | None, indices: Indices, *options: Any) -> Any: ...
    def put(self, what: str, key: str | None, new_data: Any, *options: Any) -> None: ...


class LookbackBuffer:
    """A column with its lookback, accessed through the getters and setters of the episode.

    Attributes:
        data: All items, including the lookback: arrays [lookback + n, ...], nested like the space, or a list of infos.
        lookback: Number of items before index 0.
        space: Space of an item, or None if unknown.
        finalized: Always True, since items are stored as arrays.
    """

    __slots__ = ("_episode", "_key", "_what")

    finalized = True

    def __init__(self, episode: HasColumns, what: str, key: str | None = None):
        self._episode = episode
        self._what = what
        self._key = key

    @property
    def data(self) -> Any:
        return self._episode.column(self._what, self._key).data

    @property
    def lookback(self) -> int:
        return self._episode.lookback

    @property
    def space(self) -> gym.Space[Any] | None:
        return self._episode.column(self._what, self._key).space

    def get(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Return items; arguments are as in the episode's getter for this column."""
        return self._episode.get(self._what, self._key, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def set(self, new_data: Any, *, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Write items; arguments are as in the episode's setter for this column."""
        self._episode.put(self._what, self._key, new_data, at_indices, neg_index_as_lookback)

    def len_incl_lookback(self) -> int:
        data = self.data
        return len(data) if isinstance(data, list) else len(flatten_struct(data)[0][1])

    def __getitem__(self, indices: Indices) -> Any:
        return self.get(indices)

    def __setitem__(self, indices: Indices, new_data: Any) -> None:
        self.set(new_data, at_indices=indices)

    def __len__(self) -> int:
        return max(self.len_incl_lookback() - self.lookback, 0)

    def __repr__(self) -> str:
        return f"LookbackBuffer(lookback={self.lookback}, data={self.data!r:.200})"


class EnvSteps:
    """Maps env steps of a chunk to the steps of an agent, like RLlib's `env_t_to_agent_t`.

    Attributes:
        data: One entry per env step, including the lookback: the agent's step, or "S" if it was not observed.
        lookback: Number of entries before index 0.
    """

    __slots__ = ("data", "lookback")

    def __init__(self, data: list[int | str], lookback: int):
        self.data = data
        self.lookback = lookback

    def get(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Return the entries at these env steps; index 0 is the start of the chunk."""
        timeline = Timeline(0, self.lookback, len(self.data))
        return look_up(Column(self.data), timeline, indices, neg_index_as_lookback, fill)

    def __getitem__(self, indices: Indices) -> Any:
        return self.get(indices)

    def __len__(self) -> int:
        return len(self.data) - self.lookback

    def __repr__(self) -> str:
        return f"EnvSteps({self.data[: self.lookback]} <- {self.data[self.lookback :]})"

"""Methods that write to a `SingleAgentEpisode`: adding steps and overwriting items."""

import copy
from collections.abc import Hashable
from typing import Any, Self

import numpy as np

from fastmarl.core.episodes.buffers import LookbackBuffer
from fastmarl.core.episodes.common import OF_OBSERVATIONS, Episode
from fastmarl.core.episodes.growing import GrowingColumn, GrowingSource
from fastmarl.core.episodes.indices import Column, Indices, Timeline
from fastmarl.core.episodes.lane_source import LaneSource
from fastmarl.core.episodes.sources import ArraySource, Source, array_of, as_reward, as_rewards, check_held
from fastmarl.core.errors import EpisodeError
from fastmarl.core.objects.rllib_classes import rllib_class
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct


class WrittenColumns(Episode):
    """Writing methods of `SingleAgentEpisode`, and its columns under RLlib's names or as a batch."""

    __slots__ = (
        "_columns",
        "_custom_data",
        "agent_id",
        "is_terminated",
        "is_truncated",
        "lookback",
        "source",
        "t_started",
    )

    agent_id: Hashable
    source: Source
    lookback: int
    t_started: int
    _columns: dict[tuple[Any, ...], Column]
    _custom_data: dict[str, Any] | None

    def add_env_reset(self, observation: Any, infos: dict[str, Any] | None = None) -> None:
        """Add the first observation to an empty episode. It is copied.

        Raises:
            EpisodeError: If the episode already has data, or is not the first chunk.
        """
        if self.source.n_obs or self.is_done or self.t_started:
            raise EpisodeError(f"{self._who()} has begun, with {self.source.n_obs} observations, at its step "
                               f"{self.t_started}; add a reset only to an empty episode")  # fmt: skip
        self.begin(observation, 0, infos)

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        infos: dict[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: dict[str, Any] | None = None,
    ) -> None:
        """Add a transition from the last observation to this one. Everything but the info is copied.

        Args:
            extra_model_outputs: Outputs by name; those missing in this step or in earlier ones become blanks.

        Raises:
            EpisodeError: If the episode is over or has no observation yet, or something does not fit the existing
                columns; nothing is added then.
        """
        if not self.source.n_obs:
            raise EpisodeError(f"{self._who()} has no observation yet; call add_env_reset() first")
        env_t = int(self.env_ts()[-1]) + 1
        paid = as_reward(reward, f"{self._who()}, reward")
        self.add(observation, env_t, infos, action, paid, extra_model_outputs, terminated, truncated)

    def begin(self, observation: Any, env_t: int, info: dict[str, Any] | None) -> None:
        """Add the first observation at env step `env_t`."""
        self.grown().begin(observation, env_t, info or {})
        self._columns = {}

    def add(
        self,
        observation: Any,
        env_t: int,
        info: dict[str, Any] | None,
        action: Any,
        reward: float,
        extras: dict[str, Any] | None,
        terminated: bool = False,
        truncated: bool = False,
    ) -> None:
        """Add a transition that ends at env step `env_t`."""
        if self.is_done:
            raise EpisodeError(f"{self._who()} is over; nothing can be added to it")
        self.grown().add(observation, env_t, info or {}, action, reward, extras or {})
        self._columns = {}
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)

    def grown(self) -> GrowingSource:
        """Return the columns in a form that can grow and be written to; they are copied the first time.

        Raises:
            EpisodeError: If the episode is under way in a runner.
        """
        if isinstance(self.source, LaneSource) and self.source.is_under_way:
            raise EpisodeError(f"{self._who()} is under way in a runner, which adds its steps; add yours to a copy: "
                               f"copy.deepcopy(episode)")  # fmt: skip
        if not isinstance(self.source, GrowingSource):
            self.source = GrowingSource.of(self.source)
            self._columns = {}
        return self.source

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """Return the next chunk, still without steps, with copies of this one's last steps as lookback.

        Args:
            len_lookback_buffer: Number of steps of lookback, as far as available.

        Raises:
            EpisodeError: If this episode is over.
        """
        if self.is_done:
            raise EpisodeError(f"{self._who()} is over; no chunk follows it")
        lookback, last = min(len_lookback_buffer, len(self)), self.source.n_obs - 1
        return self.successor(last - lookback, lookback)

    def successor(self, first: int, lookback: int) -> Self:
        """Return the next chunk, still without steps; rows from `first` on are copied as its lookback."""
        cut = self.rows(first, self.source.n_obs - 1, lookback)
        cut.source = GrowingSource.of(cut.source)
        cut._custom_data = copy.deepcopy(self._custom_data)
        return cut

    # Overwriting items

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite observations; see `put()`."""
        self.put("observations", None, new_data, at_indices, neg_index_as_lookback)

    def set_actions(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite actions; see `put()`."""
        self.put("actions", None, new_data, at_indices, neg_index_as_lookback)

    def set_rewards(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite rewards; see `put()`."""
        self.put("rewards", None, new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite items of the module's output `key`; see `put()`.

        Raises:
            KeyError: If there is no such output.
        """
        self.put("extra_model_outputs", key, new_data, at_indices, neg_index_as_lookback)

    def put(
        self, what: str, key: str | None, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite items of a column in place, so arrays that getters have returned may change.

        Items written by a callback during a call of `sample()` are part of the chunk that the call returns. Items
        written later only change this chunk.

        Args:
            what, key: The column, as in `get()`.
            new_data: One item if `at_indices` is an int; else a batch or a list with one item per index.
            at_indices, neg_index_as_lookback: Positions, as in the getters.

        Raises:
            IndexError: If there is nothing at an index, or the number of items and indices differ.
            EpisodeError: If the items do not fit the column, or the runner's data can't be changed there.
        """
        column = self.column(what, key)
        timeline = Timeline(0, self.lookback, self.source.n_obs - (what not in OF_OBSERVATIONS))
        times = timeline.times(at_indices, neg_index_as_lookback, clip=isinstance(at_indices, slice))
        rows = np.array([times] if isinstance(times, int) else list(times), np.int64)
        if missing := [row - self.lookback for row in rows.tolist() if not timeline.has(row)]:
            raise IndexError(f"{self._who()}: there are no {what} at {missing}, counted from the start of the chunk; "
                             f"valid are {-self.lookback} to {timeline.end - 1 - self.lookback}")  # fmt: skip
        values = _fitting(new_data, column.data, len(rows), isinstance(times, int), f"{self._who()}, {key or what}")
        if not len(rows):
            return
        if not self.source.put(what, key, rows, values):
            self.grown().put(what, key, rows, values)
        self._columns = {}

    def _who(self) -> str:
        return f"agent {self.agent_id!r}, episode {self.id_!r}"

    # Columns under RLlib's names

    @property
    def observations(self) -> LookbackBuffer:
        return LookbackBuffer(self, "observations")

    @property
    def infos(self) -> LookbackBuffer:
        return LookbackBuffer(self, "infos")

    @property
    def actions(self) -> LookbackBuffer:
        return LookbackBuffer(self, "actions")

    @property
    def rewards(self) -> LookbackBuffer:
        return LookbackBuffer(self, "rewards")

    @property
    def extra_model_outputs(self) -> dict[str, LookbackBuffer]:
        return {key: LookbackBuffer(self, "extra_model_outputs", key) for key in self.source.extra_keys()}

    def get_duration_s(self) -> float:
        """Return the seconds between the first and the last step added by hand; 0.0 for steps from a runner."""
        source = self.source
        if not isinstance(source, GrowingSource) or source.last_added_at is None or source.started_at is None:
            return 0.0
        return source.last_added_at - source.started_at

    def get_data_dict(self) -> dict[str, Any]:
        """Return a batch of the n transitions; its observations and infos are those that were acted on."""
        n = len(self)
        last = np.arange(n) == n - 1
        return {
            Columns.TERMINATEDS: last & self.is_terminated,
            Columns.TRUNCATEDS: last & self.is_truncated,
            "t": np.arange(self.t_started, self.t),
            "eps_id": np.array([self.id_] * n),
            Columns.OBS: self.get("observations", None, slice(None, -1)),
            Columns.INFOS: self.get("infos", None, slice(None, -1)),
            Columns.ACTIONS: self.get("actions", None, None),
            Columns.REWARDS: self.get("rewards", None, None),
            **self.get("extra_model_outputs", None, None),
        }

    def get_sample_batch(self) -> Any:
        """Convert `get_data_dict()` to RLlib's `SampleBatch`.

        Raises:
            ImportError: If RLlib is not installed. `get_data_dict()` works without it.
        """
        return rllib_class("policy.sample_batch", "SampleBatch")(self.get_data_dict())

    @property
    def t(self) -> int:
        raise NotImplementedError

    def env_ts(self) -> np.ndarray:
        raise NotImplementedError

    def get(self, what: str, key: str | None, indices: Indices, *options: Any) -> Any:
        raise NotImplementedError

    def column(self, what: str, key: str | None = None) -> Column:
        raise NotImplementedError

    def rows(self, first: int, last: int, lookback: int) -> Self:
        raise NotImplementedError


def given_columns(
    observations: Any, infos: Any, actions: Any, rewards: Any, extras: dict[str, Any], first_env_t: int
) -> Source:
    """Make a source from lists or arrays, without checking their lengths."""
    observed = _arrays(observations, "observation")
    n = 0 if observed is None else len(flatten_struct(observed)[0][1])
    if not n:
        return GrowingSource()
    given_infos = getattr(infos, "data", infos)
    no_items = np.zeros(0)
    return ArraySource(
        observations=observed,
        env_ts=np.arange(first_env_t, first_env_t + n),
        actions=no_items if actions is None else _arrays(actions, "action"),
        rewards=as_rewards(no_items if rewards is None else _arrays(rewards, "reward"), "reward"),
        infos=None if given_infos is None or not len(given_infos) else [info or {} for info in given_infos],
        extras={key: _arrays(values, f"extra model output {key!r}") for key, values in extras.items()},
    )


def _arrays(data: Any, what: str) -> Any:
    """Convert a list of items to arrays; arrays, and the contents of a buffer, are returned as they are."""
    if not isinstance(data, (np.ndarray, dict, tuple)):
        data = getattr(data, "data", data)
    if not isinstance(data, list):
        return data
    column = GrowingColumn()
    for item in data:
        column.append(item, what)
    return column.values()


def _fitting(new_data: Any, data: Any, n: int, is_item: bool, who: str) -> Any:
    """Convert n new items to a column like `data`: a list, or arrays [n, ...] with the same nesting."""
    if isinstance(data, list) or (isinstance(new_data, list) and not new_data):
        items = [new_data] if is_item else list(new_data)
        _check_number(len(items), n, who)
        return items
    if isinstance(data, np.ndarray) and not isinstance(new_data, np.ndarray) and data.dtype != object:
        new_data = array_of(new_data, who)
    if is_item:
        values = map_struct(lambda leaf: array_of(leaf, who)[None], new_data)
    else:
        values = map_struct(lambda leaf: array_of(leaf, who), _arrays(new_data, who))
    old, new = dict(flatten_struct(data)), dict(flatten_struct(values))
    if old.keys() != new.keys():
        raise EpisodeError(f"{who}: expected items with the parts {list(old)}, got {list(new)}")
    for path, leaf in new.items():
        _check_number(len(leaf), n, who)
        _check_fits(leaf, old[path], who)
    return values


def _check_number(got: int, expected: int, who: str) -> None:
    if got != expected:
        raise IndexError(f"{who}: expected {expected} items in new_data, got {got}")


def _check_fits(new: np.ndarray, old: np.ndarray, who: str) -> None:
    if new.shape[1:] != old.shape[1:]:
        raise EpisodeError(f"{who}: expected items of {old.dtype} and shape {old.shape[1:]}, got {new.dtype} and "
                           f"shape {new.shape[1:]}")  # fmt: skip
    check_held(old.dtype, new, who)

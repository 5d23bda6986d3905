"""The steps of a single agent in a chunk of an episode."""

import copy
import uuid
from collections.abc import Hashable
from typing import Any, Self

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.buffers import LookbackBuffer
from fastmarl.core.episodes.building import fitting, given_columns
from fastmarl.core.episodes.common import OF_OBSERVATIONS, Episode
from fastmarl.core.episodes.growing import GrowingSource
from fastmarl.core.episodes.indices import Column, Indices, Timeline, look_up, select
from fastmarl.core.episodes.lane_source import LaneSource
from fastmarl.core.episodes.sources import ArraySource, JoinedSource, Source, as_reward
from fastmarl.core.errors import EpisodeError
from fastmarl.core.objects.public import public
from fastmarl.core.objects.rllib_classes import rllib_class
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct

SAVED_COLUMNS = ("observations", "env_ts", "infos", "actions", "rewards")
SAVED = (
    "agent_id", "module_id", "id_", "multi_agent_episode_id", "lookback", "t_started", "is_terminated", "is_truncated"
)  # fmt: skip


def _buffer(what: str) -> Any:
    """Return a property for a column, named as in RLlib."""
    return property(lambda episode: LookbackBuffer(episode, what))


@public("fastmarl.episodes")
class SingleAgentEpisode(Episode):
    """n transitions of an agent as arrays: n + 1 observations, and n actions, rewards and values of each extra output.

    They are preceded by `lookback` transitions, which are also in an earlier chunk. The getters accept the same
    arguments as in RLlib; see `get_observations()`.

    Runners create these episodes. You can also build one by hand: it starts empty or with the data you pass;
    `add_env_reset()` and `add_env_step()` extend it.

    Args:
        id_: Episode id; None for "{multi_agent_episode_id}_{agent_id}", or a random id without
            `multi_agent_episode_id`.
        observations: List of n + 1 items, or arrays [n + 1, ...]; None for an empty episode.
        observation_space: Only needed for `one_hot_discrete`.
        infos: List of n + 1 dicts.
        actions: List of n items, or arrays [n, ...].
        action_space: Only needed for `one_hot_discrete`.
        rewards: List of n numbers, or array [n].
        terminated: True if the agent terminated at the last observation.
        truncated: True if the agent was truncated at the last observation.
        extra_model_outputs: Output name -> list or array, like `actions`.
        t_started: Number of steps that the agent made before index 0.
        len_lookback_buffer: Number of transitions that are lookback; "auto" means all.
        agent_id: Id of the agent.
        module_id: Id of its module.
        multi_agent_episode_id: Id of the multi-agent episode.

    Attributes:
        id_: Id shared by all chunks of a trajectory.
        source: The columns, including the lookback, read on first access; see `sources.py`.
        lookback: Number of leading transitions that are lookback.
        is_terminated, is_truncated: See `terminated` and `truncated`.

    Raises:
        EpisodeError: If the lengths of the columns are inconsistent.
    """

    __slots__ = (
        "__weakref__", "_columns", "_custom_data", "_id", "action_space", "agent_id", "is_terminated", "is_truncated",
        "lookback", "module_id", "multi_agent_episode_id", "observation_space", "source", "t_started",
    )  # fmt: skip

    observations: LookbackBuffer = _buffer("observations")
    infos: LookbackBuffer = _buffer("infos")
    actions: LookbackBuffer = _buffer("actions")
    rewards: LookbackBuffer = _buffer("rewards")
    source: Source
    _columns: dict[tuple[Any, ...], Column]
    _custom_data: dict[str, Any] | None

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Any = None,
        observation_space: gym.Space[Any] | None = None,
        infos: Any = None,
        actions: Any = None,
        action_space: gym.Space[Any] | None = None,
        rewards: Any = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: dict[str, Any] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_id: Hashable = None,
        module_id: str | None = None,
        multi_agent_episode_id: str | None = None,
    ):
        self.agent_id, self.module_id, self.multi_agent_episode_id = agent_id, module_id, multi_agent_episode_id
        self.observation_space, self.action_space = observation_space, action_space
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self._id = uuid.uuid4().hex if id_ is None and multi_agent_episode_id is None else id_
        self._columns, self._custom_data = {}, None
        n = 0 if rewards is None else len(rewards)
        self.lookback = n if len_lookback_buffer == "auto" else min(int(len_lookback_buffer), n)
        self.t_started = t_started or 0
        self.source = given_columns(
            observations, infos, actions, rewards, extra_model_outputs or {}, self.t_started - self.lookback
        )
        self.validate()

    @classmethod
    def of(
        cls,
        *,
        agent_id: Hashable,
        module_id: str | None,
        multi_agent_episode_id: str | None,
        observation_space: gym.Space[Any] | None,
        action_space: gym.Space[Any] | None,
        source: Source,
        lookback: int,
        t_started: int,
        is_terminated: bool = False,
        is_truncated: bool = False,
    ) -> Self:
        """Create an episode from the columns of `source` without validating them.

        `agent_id`, `module_id`, `multi_agent_episode_id`, `observation_space`, `action_space`, `lookback`, `t_started`,
        `is_terminated` and `is_truncated` become its attributes.
        """
        made = cls.__new__(cls)
        made.agent_id, made.module_id, made.multi_agent_episode_id = agent_id, module_id, multi_agent_episode_id
        made.observation_space, made.action_space = observation_space, action_space
        made.source, made.lookback, made.t_started = source, lookback, t_started
        made.is_terminated, made.is_truncated = is_terminated, is_truncated
        made._id = made._custom_data = None
        made._columns = {}
        return made

    @property
    def id_(self) -> str:
        return f"{self.multi_agent_episode_id}_{self.agent_id}" if self._id is None else self._id

    @id_.setter
    def id_(self, value: str) -> None:
        self._id = value

    @property
    def t(self) -> int:
        """Number of steps that the agent made before the last observation."""
        return self.t_started + len(self)

    @property
    def is_reset(self) -> bool:
        return self.source.n_obs > 0

    @property
    def custom_data(self) -> dict[str, Any]:
        """Arbitrary user data attached to this episode."""
        if self._custom_data is None:
            self._custom_data = {}
        return self._custom_data

    @property
    def extra_model_output_keys(self) -> tuple[str, ...]:
        return self.source.extra_keys()

    def __len__(self) -> int:
        return max(self.source.n_obs - 1 - self.lookback, 0)

    def __repr__(self) -> str:
        steps, total = f"{self.t_started}..{self.t}", self.get_return()
        return f"SingleAgentEpisode(id_={self.id_!r}, t={steps}, return={total:g}, done={self.is_done})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and deep-copy only the data of this chunk, not the entire block that it views."""
        return _restore, (type(self), self.get_state(), self.observation_space, self.action_space)

    def get_observations(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None,
                         one_hot_discrete: bool = False) -> Any:  # fmt: skip
        """Return observations as (nested) arrays with the dtypes of the space.

        Args:
            indices: None for all items after the lookback; an int for one item; a list of ints for a batch (a copy); a
                slice for a batch (a view). 0 is the first item after the lookback; negative indices count from the end.
            neg_index_as_lookback: If True, negative indices instead count back from index 0 into the lookback.
            fill: Value for items outside the recorded range; slices are filled on both sides, and filled items have the
                shape of other items. If None, an int out of range raises IndexError, and slices are clipped.
            one_hot_discrete: If True, convert Discrete and MultiDiscrete leaves to one-hot float32 (all zeros for items
                filled with 0).
        """
        return self.get("observations", None, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Return a list of infos, or a single info if `indices` is an int.

        `indices`, `neg_index_as_lookback` and `fill` are as in `get_observations()`.
        """
        return self.get("infos", None, indices, neg_index_as_lookback, fill)

    def get_actions(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None,
                    one_hot_discrete: bool = False) -> Any:  # fmt: skip
        """Return the raw actions of the policy as an array or nested arrays.

        `indices`, `neg_index_as_lookback`, `fill` and `one_hot_discrete` are as in `get_observations()`.
        """
        return self.get("actions", None, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Return rewards (float64), each the sum of all rewards between an action and the next observation.

        `indices`, `neg_index_as_lookback` and `fill` are as in `get_observations()`.
        """
        return self.get("rewards", None, indices, neg_index_as_lookback, fill)

    def get_extra_model_outputs(
        self, key: str | None = None, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Return the module output `key`, or a dict of all outputs if `key` is None.

        `indices`, `neg_index_as_lookback` and `fill` are as in `get_observations()`.

        Raises:
            KeyError: If the output does not exist.
        """
        return self.get("extra_model_outputs", key, indices, neg_index_as_lookback, fill)

    def env_ts(self) -> np.ndarray:
        """Return the env step (since `reset()`) of each observation, int64 [lookback + n + 1], increasing."""
        env_ts: np.ndarray = self.column("env_ts").data
        return env_ts

    def get_return(self) -> float:
        """Return the sum of the rewards, excluding the lookback, added up in order."""
        rewards = self.get_rewards()
        return float(np.cumsum(rewards)[-1]) if len(rewards) else 0.0

    def agent_steps(self) -> int:
        return len(self)

    def compact(self) -> None:
        """Copy the columns to release their block; see `MultiAgentEpisode.compact()`."""
        self.source.compact()
        self._columns = {}

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> "SingleAgentEpisode":
        """Return the consecutive steps selected by `slice_`, as views.

        Args:
            len_lookback_buffer: Number of transitions of lookback to include, as far as available; None means as in
                this chunk.
        """
        start, stop, lookback = self._bounds(slice_, len_lookback_buffer)
        return self.rows(self.lookback + start - lookback, self.lookback + stop, lookback)

    def rows(self, first: int, last: int, lookback: int) -> Self:
        """Return observations `first` to `last` (counted from the lookback) and transitions between them, as views."""
        between = slice(first, last)
        at_end = last == self.source.n_obs - 1
        source = ArraySource(
            observations=select(self.column("observations"), slice(first, last + 1)),
            env_ts=self.env_ts()[first : last + 1],
            infos=select(self.column("infos"), slice(first, last + 1)),
            actions=select(self.column("actions"), between),
            rewards=select(self.column("rewards"), between),
            extras=select(self.column("extra_model_outputs"), between),
        )
        cut = self.another(source)
        cut.lookback, cut.t_started = lookback, self.t_started + first + lookback - self.lookback
        cut.is_terminated, cut.is_truncated = self.is_terminated and at_end, self.is_truncated and at_end
        return cut

    def another(self, source: Source) -> Self:
        """Return an episode with the columns of `source` and this one's ids, spaces and flags, but no custom data."""
        made = self.of(
            agent_id=self.agent_id,
            module_id=self.module_id,
            multi_agent_episode_id=self.multi_agent_episode_id,
            observation_space=self.observation_space,
            action_space=self.action_space,
            source=source,
            lookback=self.lookback,
            t_started=self.t_started,
            is_terminated=self.is_terminated,
            is_truncated=self.is_truncated,
        )
        made._id = self._id
        return made

    def concat_episode(self, other: "SingleAgentEpisode") -> None:
        """Append the next chunk of the same trajectory, without its lookback.

        Raises:
            EpisodeError: If `other` is not the next chunk; nothing changes then.
        """
        self.check_followed_by(other)
        sources = self.source.sources if isinstance(self.source, JoinedSource) else [(self.source, 0)]
        self.source = JoinedSource([*sources, (other.source, other.lookback)])
        self._columns = {}
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self.custom_data.update(other.custom_data)

    def check_followed_by(self, other: "SingleAgentEpisode") -> None:
        """Raise EpisodeError if `other` is not the next chunk of this trajectory."""
        who = self._who()
        if self.id_ != other.id_:
            raise EpisodeError(f"{who}: cannot be joined with a different episode, {other.id_!r}")
        if self.is_done:
            raise EpisodeError(f"{who}: finished at its step {self.t}, but more data follows from step "
                               f"{other.t_started}; if the agent has rejoined, keep the chunks separate")  # fmt: skip
        if self.t != other.t_started:
            raise EpisodeError(f"{who}: ends at its step {self.t}, but the next chunk starts at step {other.t_started}")

    def validate(self) -> None:
        """Raise EpisodeError if the lengths of the columns are inconsistent."""
        n = self.source.n_obs
        if n == self.lookback == 0:
            return
        if not 0 <= self.lookback < n:
            raise EpisodeError(
                f"agent {self.agent_id!r}: lookback {self.lookback} must be >= 0 and < {n}, the number of observations"
            )
        for what, length in {"observations": n, "env_ts": n, "infos": n, "actions": n - 1, "rewards": n - 1}.items():
            self._check_length(what, self.column(what).data, length)
        for key in self.extra_model_output_keys:
            self._check_length(key, self.column("extra_model_outputs", key).data, n - 1)
        if (np.diff(self.env_ts()) <= 0).any():
            raise EpisodeError(f"agent {self.agent_id!r}: env_ts must be strictly increasing, got "
                               f"{self.env_ts().tolist()}")  # fmt: skip

    def _check_length(self, what: str, data: Any, expected: int) -> None:
        lengths = {len(data)} if isinstance(data, list) else {len(leaf) for _, leaf in flatten_struct(data)}
        if lengths != {expected}:
            raise EpisodeError(f"agent {self.agent_id!r}: expected {expected} items of {what}, got {sorted(lengths)}")

    def get_state(self) -> dict[str, Any]:
        """Return the episode as nested dicts of arrays (not copied), numbers and strings, without spaces."""
        return {
            **{name: getattr(self, name) for name in SAVED},
            **{name: self.column(name).data for name in SAVED_COLUMNS},
            "extra_model_outputs": {key: self.source.extra(key) for key in self.source.extra_keys()},
            "custom_data": self.custom_data,
        }

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        *,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
    ) -> Self:
        """Restore an episode from `state`, as returned by `get_state()`; arrays are not copied.

        `observation_space` and `action_space` are as in the constructor.

        Raises:
            EpisodeError: If the state is incomplete or the lengths of the columns are inconsistent.
        """
        try:
            rest = {name: state[name] for name in SAVED}
            id_ = rest.pop("id_")
            source = ArraySource(**{name: state[name] for name in SAVED_COLUMNS}, extras=state["extra_model_outputs"])
            custom_data = state["custom_data"]
        except KeyError as error:
            raise EpisodeError(f"the state of the agent's episode has no {error}; pass a state returned by "
                               f"get_state()") from error  # fmt: skip
        episode = cls.of(observation_space=observation_space, action_space=action_space, source=source, **rest)
        episode._id, episode._custom_data = id_, custom_data
        episode.validate()
        return episode

    def get(self, what: str, key: str | None, indices: Indices, neg_index_as_lookback: bool = False, fill: Any = None,
            one_hot_discrete: bool = False) -> Any:  # fmt: skip
        """Implement the getter `get_<what>()`; `key` is the name of an extra output or None.

        `indices`, `neg_index_as_lookback`, `fill` and `one_hot_discrete` are as in `get_observations()`.
        """
        column = self.column(what, key)
        timeline = Timeline(0, self.lookback, self.source.n_obs - (what not in OF_OBSERVATIONS))
        return look_up(column, timeline, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def column(self, what: str, key: str | None = None) -> Column:
        """Return the column for `what` and `key` (see `get()`), including the lookback."""
        column = self._columns.get((what, key))
        if column is None:
            column = self._columns[what, key] = self._read(what, key)
        return column

    def _read(self, what: str, key: str | None) -> Column:
        source = self.source
        if what == "observations":
            return Column(source.observations(), self.observation_space, with_start=True)
        if what == "actions":
            return Column(source.actions(), self.action_space)
        if what != "extra_model_outputs":
            return Column(getattr(source, what)())
        keys = source.extra_keys()
        if key is None:
            return Column({each: source.extra(each) for each in keys})
        if key not in keys:
            raise KeyError(f"agent {self.agent_id!r} has no extra model output {key!r}; available: {list(keys)}")
        return Column(source.extra(key))

    def add_env_reset(self, observation: Any, infos: dict[str, Any] | None = None) -> None:
        """Add the first `observation` (which is copied) and its `infos` to an empty episode.

        Raises:
            EpisodeError: If the episode already has data, or is not the first chunk.
        """
        if self.source.n_obs or self.is_done or self.t_started:
            raise EpisodeError(f"{self._who()} is not empty: it has {self.source.n_obs} observations and starts at "
                               f"step {self.t_started}; call add_env_reset() only on an empty episode")  # fmt: skip
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
        """Add a transition, copying everything except the infos.

        `observation`, `reward`, `infos`, `terminated` and `truncated` are the results of stepping the env with
        `action`.

        Args:
            extra_model_outputs: Output name -> value; outputs missing in this step or an earlier one become blanks.

        Raises:
            EpisodeError: If the episode has finished or has no observation yet, or a value does not match the existing
                columns; nothing is added then.
        """
        if not self.source.n_obs:
            raise EpisodeError(f"{self._who()} has no observation yet; call add_env_reset() first")
        env_t = int(self.env_ts()[-1]) + 1
        reward = as_reward(reward, f"{self._who()}, reward")
        self.add(observation, env_t, infos, action, reward, extra_model_outputs, terminated, truncated)

    def begin(self, observation: Any, env_t: int, info: dict[str, Any] | None) -> None:
        """Add the first `observation`, received at env step `env_t`, and its `info`."""
        self.grown().begin(observation, env_t, info or {})
        self._columns = {}

    def add(self, observation: Any, env_t: int, info: dict[str, Any] | None, action: Any, reward: float,
            extras: dict[str, Any] | None, terminated: bool = False, truncated: bool = False) -> None:  # fmt: skip
        """Add a transition from `action` to `observation`, which was received at env step `env_t`.

        `reward`, `info`, `extras`, `terminated` and `truncated` are as in `add_env_step()`.
        """
        if self.is_done:
            raise EpisodeError(f"{self._who()} has finished; no more steps can be added")
        self.grown().add(observation, env_t, info or {}, action, reward, extras or {})
        self._columns = {}
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)

    def grown(self) -> GrowingSource:
        """Return the columns as a growable, writable source; the first call copies them.

        Raises:
            EpisodeError: If the episode is running in a runner.
        """
        if isinstance(self.source, LaneSource) and self.source.is_under_way:
            raise EpisodeError(f"{self._who()} is still running in a runner, which adds its steps; to add your "
                               f"own, use copy.deepcopy(episode)")  # fmt: skip
        if not isinstance(self.source, GrowingSource):
            self.source = GrowingSource.of(self.source)
            self._columns = {}
        return self.source

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """Return the next chunk, without steps yet, with copies of the last steps of this chunk as lookback.

        Args:
            len_lookback_buffer: Number of steps to copy as lookback, as far as available.

        Raises:
            EpisodeError: If this episode has finished.
        """
        if self.is_done:
            raise EpisodeError(f"{self._who()} has finished; it has no next chunk")
        lookback, last = min(len_lookback_buffer, len(self)), self.source.n_obs - 1
        return self.successor(last - lookback, lookback)

    def successor(self, first: int, lookback: int) -> Self:
        """Return the next chunk, without steps yet; rows from `first` on are copied as its lookback."""
        cut = self.rows(first, self.source.n_obs - 1, lookback)
        cut.source = GrowingSource.of(cut.source)
        cut._custom_data = copy.deepcopy(self._custom_data)
        return cut

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite observations; `new_data`, `at_indices` and `neg_index_as_lookback` are as in `put()`."""
        self.put("observations", None, new_data, at_indices, neg_index_as_lookback)

    def set_actions(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite actions; `new_data`, `at_indices` and `neg_index_as_lookback` are as in `put()`."""
        self.put("actions", None, new_data, at_indices, neg_index_as_lookback)

    def set_rewards(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite rewards; `new_data`, `at_indices` and `neg_index_as_lookback` are as in `put()`."""
        self.put("rewards", None, new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite the output `key`; `new_data`, `at_indices` and `neg_index_as_lookback` are as in `put()`.

        Raises:
            KeyError: If the output does not exist.
        """
        self.put("extra_model_outputs", key, new_data, at_indices, neg_index_as_lookback)

    def put(
        self, what: str, key: str | None, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite items of a column in place; arrays returned earlier by getters may change.

        Items that a callback writes during a `sample()` call are part of the chunk that the call returns. Items written
        later change only this chunk.

        `what` and `key` name the column, as in `get()`.

        Args:
            new_data: A single item if `at_indices` is an int, else a batch or list with one item per index.
            at_indices: Indices of the items, as in the getters.
            neg_index_as_lookback: If True, negative indices count back from index 0 into the lookback.

        Raises:
            IndexError: If there is no item at an index, or the numbers of items and indices differ.
            EpisodeError: If the items do not match the column, or the column of a running episode is read-only.
        """
        column = self.column(what, key)
        timeline = Timeline(0, self.lookback, self.source.n_obs - (what not in OF_OBSERVATIONS))
        times = timeline.times(at_indices, neg_index_as_lookback, clip=isinstance(at_indices, slice))
        rows = np.array([times] if isinstance(times, int) else list(times), np.int64)
        if missing := [row - self.lookback for row in rows.tolist() if not timeline.has(row)]:
            raise IndexError(f"{self._who()}: no {what} at indices {missing} (from the start of the chunk); the "
                             f"recorded range is {timeline}")  # fmt: skip
        values = fitting(new_data, column.data, len(rows), isinstance(times, int), f"{self._who()}, {key or what}")
        if not len(rows):
            return
        source = self.source
        if not (isinstance(source, LaneSource) and source.put(what, key, rows, values)):
            self.grown().put(what, key, rows, values)
        self._columns = {}

    def _who(self) -> str:
        return f"agent {self.agent_id!r}, episode {self.id_!r}"

    @property
    def extra_model_outputs(self) -> dict[str, LookbackBuffer]:
        return {key: LookbackBuffer(self, "extra_model_outputs", key) for key in self.source.extra_keys()}

    def get_duration_s(self) -> float:
        """Return the seconds between the first and the latest step added by hand; 0.0 for steps from a runner."""
        return self.source.duration_s() if isinstance(self.source, GrowingSource) else 0.0

    def get_data_dict(self) -> dict[str, Any]:
        """Return the n transitions as a batch, with the observations and infos on which the agent acted."""
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
        """Convert `get_data_dict()` to an RLlib `SampleBatch`.

        Raises:
            ImportError: If RLlib is not installed. `get_data_dict()` works without it.
        """
        return rllib_class("policy.sample_batch", "SampleBatch")(self.get_data_dict())


def _restore(cls: Any, state: dict[str, Any], observation_space: Any, action_space: Any) -> Any:
    return cls.from_state(state, observation_space=observation_space, action_space=action_space)

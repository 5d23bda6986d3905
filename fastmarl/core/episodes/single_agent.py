"""One agent's episode within a chunk."""

import uuid
from collections.abc import Hashable
from typing import Any, Self

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.common import OF_OBSERVATIONS
from fastmarl.core.episodes.indices import Column, Indices, Timeline, look_up, select
from fastmarl.core.episodes.sources import ArraySource, JoinedSource, Source
from fastmarl.core.episodes.written_columns import WrittenColumns, given_columns
from fastmarl.core.errors import EpisodeError
from fastmarl.core.public import public
from fastmarl.core.spaces.structs import flatten_struct

SAVED_COLUMNS = ("observations", "env_ts", "infos", "actions", "rewards")
SAVED = (
    "agent_id", "module_id", "id_", "multi_agent_episode_id", "lookback", "t_started", "is_terminated", "is_truncated"
)  # fmt: skip


@public("fastmarl.episodes")
class SingleAgentEpisode(WrittenColumns):
    """n transitions of one agent, in arrays: n + 1 observations; n actions, rewards and items of each extra output.

    Before them lie `lookback` transitions that an earlier chunk holds too. The getters have the arguments of RLlib's:

    indices: None: all but the lookback; an int: one item; a list of ints: a batch, copied; a slice: a batch, a view.
        0 is the first item after the lookback. A negative index counts from the end.
    neg_index_as_lookback: count negative indices back from index 0 instead, into the lookback.
    fill: value for what lies outside of the recorded range. Without it such an int (alone or in a list) raises
        IndexError, and a slice is shortened. A slice is filled on both sides, an output's item in its own shape.
    one_hot_discrete: Discrete and MultiDiscrete leaves become float32 one-hot vectors (all zeros where filled with 0).

    A runner makes these; made by hand, one is empty, or has the data that it is given, and grows by `add_env_reset()`
    and `add_env_step()`.

    Args:
        id_: None: made of `multi_agent_episode_id` and `agent_id`, or else random.
        observations, infos: lists of n + 1 items, or arrays [n + 1, ...]; None: there are no data yet.
        actions, rewards: lists of n items, or arrays [n, ...].
        extra_model_outputs: by name, like actions.
        observation_space, action_space: needed by `one_hot_discrete` only.
        terminated, truncated: the agent's own end, at the last observation.
        t_started: steps that the agent has made before index 0.
        len_lookback_buffer: how many of the transitions are lookback; "auto": all.
        agent_id, module_id, multi_agent_episode_id: what this is part of.

    Attributes:
        id_: all chunks of a trajectory have the same.
        source: the columns, lookback included, see `sources.py`. Read when first asked for.
        lookback: number of leading transitions that are lookback.
        is_terminated, is_truncated: see `terminated`, `truncated`.

    Raises:
        EpisodeError: the columns' lengths don't fit.
    """

    __slots__ = (
        "__weakref__", "_id", "action_space", "module_id", "multi_agent_episode_id", "observation_space"
    )  # fmt: skip

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
        """The episode with these columns, which nothing checks."""
        episode = cls.__new__(cls)
        episode.agent_id = agent_id
        episode.module_id = module_id
        episode.multi_agent_episode_id = multi_agent_episode_id
        episode.observation_space = observation_space
        episode.action_space = action_space
        episode.source = source
        episode.lookback = lookback
        episode.t_started = t_started
        episode.is_terminated = is_terminated
        episode.is_truncated = is_truncated
        episode._id = episode._custom_data = None
        episode._columns = {}
        return episode

    @property
    def id_(self) -> str:
        return f"{self.multi_agent_episode_id}_{self.agent_id}" if self._id is None else self._id

    @id_.setter
    def id_(self, value: str) -> None:
        self._id = value

    @property
    def t(self) -> int:
        """Steps that the agent has made by the last observation."""
        return self.t_started + len(self)

    @property
    def is_reset(self) -> bool:
        return self.source.n_obs > 0

    @property
    def custom_data(self) -> dict[str, Any]:
        """Anything a user wants to keep with this object."""
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
        """Pickles and deep copies hold this chunk's arrays only, not the memory they are part of."""
        return _restore, (type(self), self.get_state(), self.observation_space, self.action_space)

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Array or nested arrays, of the space's dtype."""
        return self.get("observations", None, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """List of dicts (one dict for an int)."""
        return self.get("infos", None, indices, neg_index_as_lookback, fill)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Array or nested arrays: the policy's raw actions."""
        return self.get("actions", None, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """float64; each is the sum of what was paid between an action and the next observation."""
        return self.get("rewards", None, indices, neg_index_as_lookback, fill)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Any:
        """The module's output named `key`; None: a dict of all.

        Raises:
            KeyError: there is no such output.
        """
        return self.get("extra_model_outputs", key, indices, neg_index_as_lookback, fill)

    def env_ts(self) -> np.ndarray:
        """int64 [lookback + n + 1], increasing: the env step of each observation, counted from the env's reset."""
        env_ts: np.ndarray = self.column("env_ts").data
        return env_ts

    def get_return(self) -> float:
        """Sum of the rewards, without the lookback's; added up in order."""
        rewards = self.get_rewards()
        return float(np.cumsum(rewards)[-1]) if len(rewards) else 0.0

    def agent_steps(self) -> int:
        return len(self)

    def compact(self) -> None:
        """Copy these columns, see `MultiAgentEpisode.compact()`."""
        self.source.compact()
        self._columns = {}

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> "SingleAgentEpisode":
        """Some consecutive steps, as views.

        Args:
            len_lookback_buffer: how much lookback to take along, as far as there is; None: as much as this chunk has.
        """
        start, stop, lookback = self._bounds(slice_, len_lookback_buffer)
        return self.rows(self.lookback + start - lookback, self.lookback + stop, lookback)

    def rows(self, first: int, last: int, lookback: int) -> Self:
        """Rows `first` to `last` of the observations (lookback included) and what is between them, as views."""
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
        """Return an episode like this with these columns, and without custom data."""
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
        """Add what follows of the same trajectory; `other`'s lookback is left out.

        Raises:
            EpisodeError: `other` does not follow. Nothing was changed.
        """
        self.check_followed_by(other)
        sources = self.source.sources if isinstance(self.source, JoinedSource) else [(self.source, 0)]
        self.source = JoinedSource([*sources, (other.source, other.lookback)])
        self._columns = {}
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self.custom_data.update(other.custom_data)

    def check_followed_by(self, other: "SingleAgentEpisode") -> None:
        """Raises EpisodeError if `other` isn't the next chunk of this trajectory."""
        who = f"agent {self.agent_id!r}, episode {self.id_!r}"
        if self.id_ != other.id_:
            raise EpisodeError(f"{who}: can't be joined with another episode, {other.id_!r}")
        if self.is_done:
            raise EpisodeError(f"{who}: is finished at its step {self.t}, but other data follow from step "
                               f"{other.t_started} on; if the agent has come again, keep the chunks apart")  # fmt: skip
        if self.t != other.t_started:
            raise EpisodeError(f"{who}: ends at its step {self.t}, but the next chunk begins at step {other.t_started}")

    def validate(self) -> None:
        """Raises EpisodeError if the columns' lengths don't fit."""
        n = self.source.n_obs
        if n == self.lookback == 0:
            return
        if not 0 <= self.lookback < n:
            raise EpisodeError(f"agent {self.agent_id!r}: a lookback of {self.lookback} in {n} observations")
        expected = {"observations": n, "env_ts": n, "infos": n, "actions": n - 1, "rewards": n - 1}
        for what, length in expected.items():
            self._check_length(what, self.column(what).data, length)
        for key in self.extra_model_output_keys:
            self._check_length(key, self.column("extra_model_outputs", key).data, n - 1)
        if (np.diff(self.env_ts()) <= 0).any():
            raise EpisodeError(f"agent {self.agent_id!r}: env_ts must be increasing, got {self.env_ts().tolist()}")

    def _check_length(self, what: str, data: Any, expected: int) -> None:
        lengths = {len(data)} if isinstance(data, list) else {len(leaf) for _, leaf in flatten_struct(data)}
        if lengths != {expected}:
            raise EpisodeError(f"agent {self.agent_id!r}: expected {expected} items of {what}, got {sorted(lengths)}")

    def get_state(self) -> dict[str, Any]:
        """Nested dicts of arrays (not copied), numbers and strings; without the spaces."""
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
        """The episode whose `get_state` was called; the arrays are not copied.

        Raises:
            EpisodeError: something is missing, or the columns' lengths don't fit.
        """
        try:
            rest = {name: state[name] for name in SAVED}
            id_ = rest.pop("id_")
            source = ArraySource(**{name: state[name] for name in SAVED_COLUMNS}, extras=state["extra_model_outputs"])
            custom_data = state["custom_data"]
        except KeyError as error:
            raise EpisodeError(f"the state of a single agent's episode lacks {error}") from error
        episode = cls.of(observation_space=observation_space, action_space=action_space, source=source, **rest)
        episode._id, episode._custom_data = id_, custom_data
        episode.validate()
        return episode

    def get(
        self,
        what: str,
        key: str | None,
        indices: Indices,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """What the getters have in common; `what` is the end of the getter's name, `key` that of an extra output."""
        column = self.column(what, key)
        timeline = Timeline(0, self.lookback, self.source.n_obs - (what not in OF_OBSERVATIONS))
        return look_up(column, timeline, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def column(self, what: str, key: str | None = None) -> Column:
        """A whole column, lookback included."""
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
            raise KeyError(f"agent {self.agent_id!r} has no extra model output {key!r}, only {list(keys)}")
        return Column(source.extra(key))


def _restore(cls: Any, state: dict[str, Any], observation_space: Any, action_space: Any) -> Any:
    return cls.from_state(state, observation_space=observation_space, action_space=action_space)

"""Read access to a `MultiAgentEpisode`: lazy loading, getters, saved states and notebook display."""

import os
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from threading import RLock
from typing import Any, Self

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.buffers import EnvSteps
from fastmarl.core.episodes.chunk import Chunk, ChunkHead
from fastmarl.core.episodes.common import OF_OBSERVATIONS, Episode
from fastmarl.core.episodes.indices import Column, Indices, Timeline, look_up
from fastmarl.core.episodes.queries import AgentID, AgentIDs, Query, asked_for
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import owned
from fastmarl.core.errors import EpisodeError
from fastmarl.core.native._locked import locked
from fastmarl.core.objects.html_table import html_table
from fastmarl.core.objects.rllib_classes import is_of_rllib, rllib_class

SAVED = (
    "id_", "env_t_started", "env_t", "lookback", "is_terminated", "is_truncated", "common_infos", "hanging_rewards",
    "custom_data", "agent_ids", "duration_s", "respawned", "reset_seed", "env_states",
)  # fmt: skip
SAVED_IF_BUILT = ("open_actions", "early_rewards")
MOST_SHOWN = 20  # agents shown in a notebook

_reading = RLock()


def _renew_lock() -> None:
    """Replace the lock in a forked child, where the thread that holds it may not exist."""
    global _reading
    _reading = RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _field(name: str) -> Any:
    """Return a property that accesses a field of the chunk."""

    def put(episode: "ReadableEpisode", value: Any) -> None:
        setattr(episode.chunk, name, value)

    return property(attrgetter(f"chunk.{name}"), put, lambda episode: delattr(episode.chunk, name))


def _spaces(name: str) -> Any:
    """Return a property for a dict of agent id -> space, which defaults to the spaces of the agent episodes."""
    field = _field(name)

    def get(episode: "ReadableEpisode") -> Any:
        given = field.fget(episode)
        return given or {
            agent: getattr(agent_episode, name)
            for agent, agent_episode in episode.agent_episodes.items()
            if getattr(agent_episode, name) is not None
        }

    return property(get, field.fset, field.fdel)


class ReadableEpisode(Episode):
    """The read-only part of `MultiAgentEpisode`.

    Its chunk is read lazily. Reading is thread-safe and can be interrupted at any point.

    Attributes:
        chunk: The data of the episode.
    """

    __slots__ = ("__weakref__", "_chunk")

    SKIP_ENV_TS_TAG = "S"

    _chunk: Any  # a Chunk, or a reference to an unread one: (UnreadChunks, index in it, data kept per episode)
    id_: str = _field("id_")
    env_t_started: int = _field("env_t_started")
    env_t: int = _field("env_t")
    lookback: int = _field("lookback")
    is_terminated: bool = _field("is_terminated")
    is_truncated: bool = _field("is_truncated")
    agent_to_module_mapping_fn: Callable[[Any, Any], str] | None = _field("agent_to_module_mapping_fn")
    observation_space: Mapping[Any, gym.Space[Any]] = _spaces("observation_space")
    action_space: Mapping[Any, gym.Space[Any]] = _spaces("action_space")
    reset_seed: int | None = _field("reset_seed")

    @classmethod
    def of(cls, chunk: Chunk) -> Self:
        """Create an episode from a chunk."""
        episode = cls.__new__(cls)
        episode._chunk = chunk
        return episode

    @classmethod
    def of_agents(cls, agent_episodes: dict[AgentID, SingleAgentEpisode], **fields: Any) -> Self:
        """Create a chunk from agent episodes.

        Args:
            agent_episodes: Dict of agent id -> agent episode.
            fields: Other fields of `Chunk`. `id_`, `env_t_started` and `env_t` are required; None means the default.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        return cls.of(Chunk(agent_episodes=agent_episodes, **{"agent_ids": list(agent_episodes), **given}))

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        *,
        observation_space: Mapping[Any, gym.Space[Any]] | None = None,
        action_space: Mapping[Any, gym.Space[Any]] | None = None,
        agent_to_module_mapping_fn: Callable[[Any, Any], str] | None = None,
    ) -> Self:
        """Restore a chunk from a state returned by `get_state()`; arrays are not copied.

        Args:
            state: Result of `get_state()`.
            observation_space: Dict of agent id -> observation space.
            action_space: Dict of agent id -> action space.
            agent_to_module_mapping_fn: See the constructor.

        Raises:
            EpisodeError: If the state is incomplete or inconsistent.
        """
        spaces: dict[str, Any] = {"observation_space": observation_space or {}, "action_space": action_space or {}}
        try:
            rest = {name: state[name] for name in SAVED} | {name: state.get(name) for name in SAVED_IF_BUILT}
            agent_episodes = {
                agent_episode["agent_id"]: SingleAgentEpisode.from_state(
                    agent_episode,
                    **{name: by_agent.get(agent_episode["agent_id"]) for name, by_agent in spaces.items()},
                )
                for agent_episode in state["agent_episodes"]
            }
        except KeyError as error:
            raise EpisodeError(f"the state of the episode has no {error}; pass a state returned by "
                               f"get_state()") from error  # fmt: skip
        episode = cls.of_agents(
            agent_episodes=agent_episodes, agent_to_module_mapping_fn=agent_to_module_mapping_fn, **spaces, **rest
        )
        episode.validate()
        return episode

    def get_state(self) -> dict[str, Any]:
        """Return nested dicts of arrays (not copied), numbers and strings, without spaces and the mapping function."""
        return {
            **{name: getattr(self.chunk, name) for name in SAVED},
            "agent_episodes": [agent_episode.get_state() for agent_episode in self.agent_episodes.values()],
            "agent_ids": list(self.chunk.agent_ids),
            "respawned": list(self.chunk.respawned),
            "env_states": self.env_states,
            **({name: getattr(self.chunk, name) for name in SAVED_IF_BUILT} if self._is_built else {}),
        }

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Pickle and deep-copy only the data of this chunk, not the entire block that it views."""
        chunk = self.chunk
        data = replace(
            chunk,
            agent_episodes=self.agent_episodes,
            lanes=None,
            waiting_infos=self.get_waiting_infos(),
            without_steps=self.without_steps(),
            open_actions=self.open_actions() if chunk.is_under_way else chunk.open_actions,
            agent_to_module_mapping_fn=None if chunk.is_under_way else chunk.agent_to_module_mapping_fn,
            begun_at=None,
        )
        return None, {"_chunk": data}

    @property
    def chunk(self) -> Chunk:
        chunk = self._chunk
        return chunk if type(chunk) is Chunk else locked(_reading, self._read)

    def _read(self) -> Chunk:
        if type(self._chunk) is not Chunk:
            chunks, index, own_data = self._chunk
            self._chunk = chunks.read(index, own_data)
        return self._chunk

    @property
    def agent_episodes(self) -> dict[Hashable, SingleAgentEpisode]:
        """Dict of agent id -> agent episode, for agents with at least one transition in this chunk."""
        chunk = self._chunk
        built = chunk.agent_episodes if type(chunk) is Chunk else None
        return locked(_reading, self._build) if built is None else built

    @agent_episodes.setter
    def agent_episodes(self, agent_episodes: dict[Hashable, SingleAgentEpisode]) -> None:
        self.chunk.agent_episodes = agent_episodes

    def _build(self) -> dict[Hashable, SingleAgentEpisode]:
        chunk = self.chunk
        if chunk.agent_episodes is None:
            assert chunk.lanes is not None
            chunk.agent_episodes = chunk.lanes.agent_episodes()
        return chunk.agent_episodes

    def head(self) -> ChunkHead | None:
        """Return the head of an unread chunk without reading it; None if it has been read or contains other data."""
        chunk = self._chunk
        return None if type(chunk) is Chunk else chunk[0].head(*chunk[1:])

    def without_steps(self) -> Sequence[SingleAgentEpisode]:
        """Return the episodes of unfinished agents without a step in this chunk, and new ones of respawned agents."""
        lanes = self.chunk.lanes  # read first, since another thread may compact the chunk
        return self.chunk.without_steps if lanes is None else lanes.without_steps()

    def n_unbuilt_rows(self) -> int:
        """Return the number of rows for which agent episodes have not been built yet, without building them."""
        chunk = self._chunk
        if type(chunk) is not Chunk:
            return int(chunk[0].n_rows(chunk[1]))
        lanes = chunk.lanes
        return lanes.n_rows() if chunk.agent_episodes is None and lanes is not None else 0

    def validate(self) -> None:
        """Raise EpisodeError if the columns of an agent are inconsistent or env states are missing."""
        if self.env_states is not None and len(self.env_states) <= len(self):
            raise EpisodeError(f"expected at least {len(self) + 1} env states, got {len(self.env_states)}")
        for agent, agent_episode in self.agent_episodes.items():
            agent_episode.validate()
            ends = agent_episode.env_ts()[agent_episode.lookback + 1 :]
            if not all(self.env_t_started < end <= self.env_t for end in ends.tolist()):
                raise EpisodeError(f"agent {agent!r}: expected transitions that end within env steps "
                                   f"{self.env_t_started} to {self.env_t} of the chunk, got ends at "
                                   f"{ends.tolist()}")  # fmt: skip

    def compact(self) -> None:
        """Copy the data of this chunk, to release the memory of the `sample()` call that returned it.

        A chunk returned by a runner is a view of everything that its call recorded. The runner compacts chunks
        automatically when only a few chunks of a call are still referenced. Arrays returned by getters remain valid,
        and other threads can read the chunk meanwhile.
        """
        chunk, agent_episodes, states = self.chunk, self.agent_episodes, self.env_states
        chunk.waiting_infos, chunk.without_steps = self.get_waiting_infos(), self.without_steps()
        chunk.lanes = None
        for agent_episode in [*agent_episodes.values(), *chunk.without_steps]:
            agent_episode.compact()
        chunk.env_states = None if states is None else owned(states)

    @property
    def agent_episode_ids(self) -> dict[AgentID, str]:
        return {agent: agent_episode.id_ for agent, agent_episode in self.agent_episodes.items()}

    @property
    def agent_t_started(self) -> dict[AgentID, int]:
        return {agent: agent_episode.t_started for agent, agent_episode in self.agent_episodes.items()}

    @property
    def custom_data(self) -> dict[str, Any]:
        return self.chunk.custom_data

    @property
    def is_reset(self) -> bool:
        return self.env_t > 0 or bool(self.chunk.agent_ids)

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    def __repr__(self) -> str:
        return (f"MultiAgentEpisode(id_={self.id_!r}, env_t={self.env_t_started}..{self.env_t}, "
                f"agents={len(self.agent_episodes)}, agent_steps={self.agent_steps()}, return={self.get_return():g}, "
                f"done={self.is_done})")  # fmt: skip

    def _repr_html_(self) -> str:
        ends = {(False, False): "", (True, False): "terminated", (False, True): "truncated", (True, True): "both"}
        rows = [
            (agent, each.module_id, len(each), f"{each.get_return():g}", ends[each.is_terminated, each.is_truncated])
            for agent, each in islice(self.agent_episodes.items(), MOST_SHOWN)
        ]
        more = len(self.agent_episodes) - len(rows)
        state = "done" if self.is_done else "not done"
        title = (
            f"Episode {self.id_}: env steps {self.env_t_started} to {self.env_t}, return {self.get_return():g}, {state}"
        )
        notes = [f"... and {more:,} more agents"] if more else []
        return html_table(("agent", "module", "steps", "return", "end"), rows, title=title, notes=notes)

    def agent_steps(self) -> int:
        """Return the total number of transitions of all agents."""
        return sum(len(agent_episode) for agent_episode in self.agent_episodes.values())

    def get_duration_s(self) -> float:
        return self.chunk.duration_s

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Return the sum of the rewards of all agents in this chunk.

        Rewards of waiting agents count once their transition is complete, or now with `include_hanging_rewards`.
        """
        total = sum((agent_episode.get_return() for agent_episode in self.agent_episodes.values()), 0.0)
        chunk = self.chunk
        hanging = sum(chunk.hanging_rewards.values()) + sum(chunk.early_rewards.values())
        return total + hanging if include_hanging_rewards else total

    def get_common_infos(self) -> dict[int, dict[str, Any]]:
        """Return env step -> `infos["__common__"]` of that step."""
        return self.chunk.common_infos

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Return agent id -> terminated flag, with the env's flag under "__all__"."""
        flags = {agent: agent_episode.is_terminated for agent, agent_episode in self.agent_episodes.items()}
        return {**flags, "__all__": self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Return agent id -> truncated flag, with the env's flag under "__all__" (in RLlib, its terminated flag)."""
        flags = {agent: agent_episode.is_truncated for agent, agent_episode in self.agent_episodes.items()}
        return {**flags, "__all__": self.is_truncated}

    def get_agents_that_stepped(self) -> set[Any]:
        """Return the agents with an observation at env step `env_t`."""
        chunk = self.chunk
        waiting = {
            agent for agent, agent_episode in self.agent_episodes.items() if agent_episode.env_ts()[-1] != chunk.env_t
        }
        return set(chunk.agent_ids) - waiting - chunk.hanging_rewards.keys() | set(chunk.respawned)

    def get_agents_to_act(self) -> set[Any]:
        """Return the agents observed at env step `env_t` that have not finished; none once the episode is done."""
        if self.is_done:
            return set()
        done = {agent for agent, agent_episode in self.agent_episodes.items() if agent_episode.is_done}
        return self.get_agents_that_stepped() - done | set(self.chunk.respawned)

    @property
    def agent_ids(self) -> set[Any]:
        """The keys of `agent_episodes`, as a set."""
        return set(self.agent_episodes)

    @property
    def env_t_to_agent_t(self) -> dict[AgentID, EnvSteps]:
        """Agent id -> the agent's step, or `SKIP_ENV_TS_TAG`, at every env step of the chunk and its lookback."""
        first = self.env_t_started - self.lookback
        found = {}
        for agent, agent_episode in self.agent_episodes.items():
            begin = agent_episode.t_started - agent_episode.lookback
            step_at = {env_t: begin + i for i, env_t in enumerate(agent_episode.env_ts().tolist())}
            entries = [step_at.get(env_t, self.SKIP_ENV_TS_TAG) for env_t in range(first, self.env_t + 1)]
            found[agent] = EnvSteps(entries, self.lookback)
        return found

    def module_for(self, agent_id: AgentID) -> str:
        """Return the id of the module that acts for `agent_id`. The mapping function is called once per agent.

        Raises:
            KeyError: If the agent has no episode in this chunk and there is no mapping function.
        """
        chunk = self.chunk
        module_id = chunk.module_of.get(agent_id)
        if module_id is None:
            agent_episode = self.agent_episodes.get(agent_id)
            if agent_episode is not None and agent_episode.module_id is not None:
                module_id = agent_episode.module_id
            elif chunk.agent_to_module_mapping_fn is None:
                raise KeyError(f"agent {agent_id!r} has no transition in this chunk, and there is no mapping function")
            else:
                module_id = chunk.agent_to_module_mapping_fn(agent_id, self)
            chunk.module_of[agent_id] = module_id
        return module_id

    def get_waiting_infos(self) -> dict[AgentID, dict[int, dict[str, Any]]]:
        """Return agent id -> env step -> info for steps in which an agent received an info but no observation.

        `get_infos()` omits these, as it returns one info per observation. Slices of an episode do not contain them.
        """
        lanes = self.chunk.lanes
        return dict(self.chunk.waiting_infos) if lanes is None else lanes.waiting_infos()

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Return a dict of agent id -> observations.

        `indices`, `neg_index_as_lookback`, `fill` and `one_hot_discrete` are as in `SingleAgentEpisode`.

        Args:
            agent_ids: One agent id or a collection of ids; None means all in `agent_episodes`. Unknown ids are ignored.
            env_steps: If True, indices are env steps, and 0 is `env_t_started`. Steps at which an agent has no item
                contain `fill`; without `fill`, they are left out, as are agents without any item. An action, its reward
                and its extra outputs belong to the env step of the observation that the action responds to. If False,
                indices are steps of each agent.
            return_list: If True, return a list with one dict per env step, which is empty for unrecorded steps.
        """
        query = Query("observations", None, indices, neg_index_as_lookback, fill, one_hot_discrete)
        return self._answer(query, agent_ids, env_steps, return_list)

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Return a dict of agent id -> list of infos, which remains a list if `fill` is given.

        `indices`, `agent_ids`, `env_steps`, `neg_index_as_lookback`, `fill` and `return_list` are as in
        `get_observations()`.
        """
        query = Query("infos", None, indices, neg_index_as_lookback, fill, False)
        return self._answer(query, agent_ids, env_steps, return_list)

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Return a dict of agent id -> raw actions of the policy.

        The pending action of a waiting agent is returned by the next chunk.

        `indices`, `agent_ids`, `env_steps`, `neg_index_as_lookback`, `fill`, `one_hot_discrete` and `return_list` are
        as in `get_observations()`.
        """
        query = Query("actions", None, indices, neg_index_as_lookback, fill, one_hot_discrete)
        return self._answer(query, agent_ids, env_steps, return_list)

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Return a dict of agent id -> rewards (float64).

        `indices`, `agent_ids`, `env_steps`, `neg_index_as_lookback`, `fill` and `return_list` are as in
        `get_observations()`.
        """
        query = Query("rewards", None, indices, neg_index_as_lookback, fill, False)
        return self._answer(query, agent_ids, env_steps, return_list)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: AgentIDs = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Return a dict of agent id -> module output `key` (None: a dict of all outputs), for agents that have it.

        `indices`, `agent_ids`, `env_steps`, `neg_index_as_lookback`, `fill` and `return_list` are as in
        `get_observations()`.

        Raises:
            KeyError: If no agent has this output.
        """
        query = Query("extra_model_outputs", key, indices, neg_index_as_lookback, fill, False)
        return self._answer(query, agent_ids, env_steps, return_list)

    @property
    def env_states(self) -> np.ndarray | None:
        """All known global states [n, ...] up to `env_t`; None if none were recorded."""
        chunk = self.chunk
        if isinstance(chunk.env_states, list):
            chunk.env_states = np.concatenate(chunk.env_states)
        return chunk.env_states

    def get_env_states(self, indices: Indices = None, *, neg_index_as_lookback: bool = False) -> np.ndarray:
        """Return the global states of the env [len + 1, ...] from `env_t_started` to `env_t`; see `record_env_state`.

        Args:
            indices: Env steps, where 0 is `env_t_started`, as in `SingleAgentEpisode`. All forms except a list return
                views.
            neg_index_as_lookback: If True, negative indices count back from index 0.

        Raises:
            EpisodeError: If no states were recorded.
            IndexError: If there is no state at an index.
        """
        states = self.env_states
        if states is None:
            raise EpisodeError(f"episode {self.id_!r} has no env states; sample with record_env_state=True")
        timeline = Timeline(0, len(states) - 1 - (self.env_t - self.env_t_started), len(states))
        found: np.ndarray = look_up(Column(states), timeline, indices, neg_index_as_lookback)
        return found

    def print(self) -> None:
        """Print a table with a row per agent and a column per env step, with an x for each observation."""
        steps = np.arange(self.env_t_started - self.lookback, self.env_t + 1)
        names = [str(agent) for agent in self.agent_episodes]
        width = max(map(len, [*names, "env_t"]))
        cell = len(str(self.env_t)) + 2
        lines = ["env_t".ljust(width) + "".join(f"{step:{cell}}" for step in steps)]
        for name, agent_episode in zip(names, self.agent_episodes.values(), strict=True):
            marks = np.where(np.isin(steps, agent_episode.env_ts()), "x", "")
            lines.append((name.ljust(width) + "".join(f"{mark:>{cell}}" for mark in marks)).rstrip())
        sys.stdout.write("\n".join(lines) + "\n")

    def open_actions(self) -> dict[AgentID, tuple[Any, dict[str, Any]]]:
        """Return agent id -> (action, extra outputs) for agents waiting for an observation.

        Only running episodes and episodes built by hand contain pending actions. Otherwise, an action is in the chunk
        in which its result arrives.
        """
        chunk = self.chunk
        if chunk.lanes is not None and chunk.is_under_way:
            return chunk.lanes.open_actions(chunk.hanging_rewards)
        return chunk.open_actions or {}

    def _opened_items(self, what: str, key: str | None) -> dict[AgentID, Any]:
        """Return the column item that the pending action of each agent adds; see `Query.opened`."""
        opened = {} if what in OF_OBSERVATIONS else self.open_actions()
        if not opened or what == "actions":
            return {agent: action for agent, (action, _) in opened.items()}
        if what == "rewards":
            return {agent: self.chunk.hanging_rewards.get(agent, 0.0) for agent in opened}
        if key is None:
            return {agent: extras for agent, (_, extras) in opened.items() if extras}
        agent_episodes = self.agent_episodes
        return {
            agent: extras.get(key)
            for agent, (_, extras) in opened.items()
            if key in extras or key in agent_episodes[agent].extra_model_output_keys
        }

    def _answer(self, query: Query, agent_ids: AgentIDs, env_steps: bool, return_list: bool) -> Any:
        if return_list and not env_steps:
            raise ValueError(
                "return_list=True returns one item per env step and cannot be combined with env_steps=False"
            )
        agent_episodes = asked_for(self.agent_episodes, agent_ids)
        query = query._replace(opened=self._opened_items(query.what, query.key))
        if query.what == "extra_model_outputs":
            agent_episodes = query.with_output(agent_episodes)
        if not agent_episodes:
            return [] if return_list else {}
        if not env_steps:
            return query.by_agent_steps(agent_episodes)
        chunk = self.chunk
        first = min(
            chunk.env_t_started - chunk.lookback,
            *(int(agent_episode.env_ts()[0]) for agent_episode in agent_episodes.values()),
        )
        timeline = Timeline(first, chunk.env_t_started, chunk.env_t + (query.what in OF_OBSERVATIONS))
        return query.as_list(agent_episodes, timeline) if return_list else query.by_env_steps(agent_episodes, timeline)

    @property
    def _is_built(self) -> bool:
        """True if the chunk includes pending actions and agents without a transition."""
        return self.chunk.open_actions is not None or self.chunk.is_under_way

    def get_sample_batch(self) -> Any:
        """Return an RLlib `MultiAgentBatch` with one batch for each agent that has at least one step.

        Raises:
            ImportError: If RLlib is not installed. `fastmarl.batches.columns()` works without it.
        """
        batches = {agent: steps.get_sample_batch() for agent, steps in self.agent_episodes.items() if len(steps)}
        return rllib_class("policy.sample_batch", "MultiAgentBatch")(policy_batches=batches, env_steps=len(self))


def check_kind(episodes: Iterable[Any]) -> None:
    """Check that all `episodes` are fastmarl episodes.

    Raises:
        EpisodeError: If one has a different class, such as an RLlib episode.
    """
    for kind in dict.fromkeys(map(type, episodes)):
        if not issubclass(kind, ReadableEpisode):
            convert = "convert each episode with fastmarl.episodes.from_rllib()"
            way_out = convert if is_of_rllib(kind) else "pass the episodes that sample() returns"
            raise EpisodeError(f"expected instances of fastmarl.episodes.MultiAgentEpisode, got a "
                               f"{kind.__module__}.{kind.__qualname__}; {way_out}")  # fmt: skip

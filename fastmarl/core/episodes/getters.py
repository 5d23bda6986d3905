"""The getters of `MultiAgentEpisode`, which look up columns by env steps or by each agent's own steps."""

import sys
from collections.abc import Collection, Hashable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fastmarl.core.episodes.buffers import EnvSteps
from fastmarl.core.episodes.common import OF_OBSERVATIONS
from fastmarl.core.episodes.indices import Column, Indices, Timeline, has_any, item, look_up, rows_at, select
from fastmarl.core.episodes.lazy import LazyEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import blank_like, joined
from fastmarl.core.errors import EpisodeError
from fastmarl.core.spaces.structs import map_struct

AgentID = Hashable
AgentIDs = AgentID | Collection[AgentID] | None
AgentEpisodes = dict[AgentID, SingleAgentEpisode]


class Request(NamedTuple):
    """The arguments of a getter, apart from the agents.

    `opened` maps an agent to one further item of its column: that of the action that no observation has answered yet.
    """

    what: str
    key: str | None
    indices: Indices
    neg_index_as_lookback: bool
    fill: Any
    one_hot: bool
    opened: Mapping[AgentID, Any] = MappingProxyType({})

    def by_agent_steps(self, agent_episodes: AgentEpisodes) -> dict[AgentID, Any]:
        answers = {}
        for agent, agent_episode in agent_episodes.items():
            n = agent_episode.source.n_obs - (self.what not in OF_OBSERVATIONS) + (agent in self.opened)
            column, timeline = self._column(agent, agent_episode), Timeline(0, agent_episode.lookback, n)
            answers[agent] = look_up(
                column, timeline, self.indices, self.neg_index_as_lookback, self.fill, self.one_hot
            )
        return {agent: values for agent, values in answers.items() if not (isinstance(values, list) and not values)}

    def by_env_steps(self, agent_episodes: AgentEpisodes, timeline: Timeline) -> dict[AgentID, Any]:
        filled = self.fill is not None
        times = timeline.times(self.indices, self.neg_index_as_lookback, clip=not filled)
        wanted = [times] if isinstance(times, int) else times
        if not filled and isinstance(wanted, list):
            timeline.check(wanted)
        answer = {}
        for agent, agent_episode in agent_episodes.items():
            rows = rows_at(wanted, self._env_ts(agent, agent_episode), filled)
            if has_any(rows):
                chosen = int(rows[0]) if isinstance(times, int) and isinstance(rows, np.ndarray) else rows
                answer[agent] = select(self._column(agent, agent_episode), chosen, self.fill, self.one_hot)
        return answer

    def as_list(self, agent_episodes: AgentEpisodes, timeline: Timeline) -> list[dict[AgentID, Any]]:
        times = timeline.times(self.indices, self.neg_index_as_lookback, clip=False)
        if isinstance(times, int):
            raise TypeError(f"return_list=True needs a slice, a list or None as indices, got {self.indices!r}")
        answers: list[dict[AgentID, Any]] = [{} for _ in times]
        for agent, agent_episode in agent_episodes.items():
            rows = rows_at(times, self._env_ts(agent, agent_episode), True)
            assert isinstance(rows, np.ndarray)
            steps = np.arange(len(rows)) if self.fill is not None else np.flatnonzero(rows >= 0)
            values = select(self._column(agent, agent_episode), rows[steps], self.fill, self.one_hot)
            for i, step in enumerate(steps.tolist()):
                answers[step][agent] = item(values, i)
        return answers

    def _env_ts(self, agent: AgentID, agent_episode: SingleAgentEpisode) -> np.ndarray:
        """Return the env steps of the column's items."""
        has_all = self.what in OF_OBSERVATIONS or agent in self.opened
        return agent_episode.env_ts() if has_all else agent_episode.env_ts()[:-1]

    def _column(self, agent: AgentID, agent_episode: SingleAgentEpisode) -> Column:
        if agent not in self.opened:
            return agent_episode.column(self.what, self.key)
        is_new = self.key is not None and self.key not in agent_episode.extra_model_output_keys
        column = Column(None) if is_new else agent_episode.column(self.what, self.key)
        n = agent_episode.source.n_obs - 1
        return column._replace(data=_with_item(column.data, n, self.opened[agent], self.key, self.what))


def _with_item(data: Any, n: int, item: Any, key: str | None, what: str) -> Any:
    """Append an item to a column of n items, or to each column in the dict of all extra outputs; None adds a blank."""
    if what == "extra_model_outputs" and key is None:
        data = data or {}
        return {each: _with_item(data.get(each), n, item.get(each), each, what) for each in {**data, **item}}
    last = blank_like(data, 1, str(key)) if item is None else map_struct(lambda leaf: np.asarray(leaf)[None], item)
    if not n:
        return last
    return joined([blank_like(last, n, str(key)) if data is None else data, last])


class Getters(LazyEpisode):
    """The getters of `MultiAgentEpisode`, which documents their arguments."""

    __slots__ = ()

    SKIP_ENV_TS_TAG = "S"

    @property
    def agent_ids(self) -> set[Any]:
        """Keys of `agent_episodes`, as a set."""
        return set(self.agent_episodes)

    @property
    def env_t_to_agent_t(self) -> dict[AgentID, EnvSteps]:
        """Each agent's own step at every env step of the chunk and its lookback, or `SKIP_ENV_TS_TAG`."""
        first = self.env_t_started - self.lookback
        found = {}
        for agent, agent_episode in self.agent_episodes.items():
            begin = agent_episode.t_started - agent_episode.lookback
            step_at = {env_t: begin + i for i, env_t in enumerate(agent_episode.env_ts().tolist())}
            entries = [step_at.get(env_t, self.SKIP_ENV_TS_TAG) for env_t in range(first, self.env_t + 1)]
            found[agent] = EnvSteps(entries, self.lookback)
        return found

    def module_for(self, agent_id: AgentID) -> str:
        """Return the id of the module that acts for an agent. The mapping function is called once per agent.

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
        """Return agent -> env step -> info for steps in which an agent had an info but no observation.

        `get_infos()` leaves these out, as it has one info per observation. Slices of an episode have none.
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
        """Return observations by agent id."""
        request = Request("observations", None, indices, neg_index_as_lookback, fill, one_hot_discrete)
        return self._answer(request, agent_ids, env_steps, return_list)

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
        """Return a list of infos by agent id, also if `fill` is given."""
        request = Request("infos", None, indices, neg_index_as_lookback, fill, False)
        return self._answer(request, agent_ids, env_steps, return_list)

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
        """Return the policy's raw actions by agent id. A waiting agent's unanswered action is in the next chunk."""
        request = Request("actions", None, indices, neg_index_as_lookback, fill, one_hot_discrete)
        return self._answer(request, agent_ids, env_steps, return_list)

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
        """Return rewards (float64) by agent id."""
        request = Request("rewards", None, indices, neg_index_as_lookback, fill, False)
        return self._answer(request, agent_ids, env_steps, return_list)

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
        """Return the module outputs `key` (None: a dict of all outputs) by agent id, for agents that have them.

        Raises:
            KeyError: If no agent has such an output.
        """
        request = Request("extra_model_outputs", key, indices, neg_index_as_lookback, fill, False)
        return self._answer(request, agent_ids, env_steps, return_list)

    @property
    def env_states(self) -> np.ndarray | None:
        """All known global states [n, ...], the last at `env_t`; None if none were recorded."""
        chunk = self.chunk
        if isinstance(chunk.env_states, list):
            chunk.env_states = np.concatenate(chunk.env_states)
        return chunk.env_states

    def get_env_states(self, indices: Indices = None, *, neg_index_as_lookback: bool = False) -> np.ndarray:
        """Return the env's global states [len + 1, ...] from `env_t_started` to `env_t`; see `record_env_state`.

        Args:
            indices: Env steps, 0 being `env_t_started`, as in `SingleAgentEpisode`. All but a list give views.

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

    def _states_of(
        self, states: np.ndarray, agent_episodes: AgentEpisodes, known: list[Any], since: int, end: int
    ) -> np.ndarray:
        """Select the states from env step `since` to `end`, and earlier ones at which now waiting agents acted."""
        first = self.env_t + 1 - len(states)
        acted_at = [int(agent_episode.env_ts()[agent_episode.lookback]) for agent_episode in agent_episodes.values()]
        for agent in known:
            if agent not in agent_episodes:
                whole = self.agent_episodes.get(agent)
                before = np.zeros(0) if whole is None else whole.env_ts()[whole.env_ts() <= end]
                acted_at.append(int(before[-1]) if len(before) else first)  # else waiting since an earlier chunk
        return states[max(min([since, *acted_at]) - first, 0) : end + 1 - first]

    def print(self) -> None:
        """Print a table of agents by env steps, with an x for each observation."""
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
        """Return agent -> (action, extra outputs) for agents that have acted and wait for an observation.

        Only episodes that are under way or built by hand have any; others keep them in the chunk that answers them.
        """
        chunk = self.chunk
        if chunk.lanes is not None and chunk.is_under_way:
            return chunk.lanes.open_actions(chunk.hanging_rewards)
        return chunk.open_actions or {}

    def _opened_items(self, what: str, key: str | None) -> dict[AgentID, Any]:
        """Return the further item of each agent's column; see `Request.opened`."""
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

    def _answer(self, request: Request, agent_ids: AgentIDs, env_steps: bool, return_list: bool) -> Any:
        if return_list and not env_steps:
            raise ValueError(
                "return_list=True returns one item per env step, so it can't be combined with env_steps=False"
            )
        agent_episodes = self._asked_for(agent_ids)
        request = request._replace(opened=self._opened_items(request.what, request.key))
        if request.what == "extra_model_outputs":
            agent_episodes = self._with_output(agent_episodes, request)
        if not agent_episodes:
            return [] if return_list else {}
        if not env_steps:
            return request.by_agent_steps(agent_episodes)
        chunk = self.chunk
        first = min(
            chunk.env_t_started - chunk.lookback,
            *(int(agent_episode.env_ts()[0]) for agent_episode in agent_episodes.values()),
        )
        timeline = Timeline(first, chunk.env_t_started, chunk.env_t + (request.what in OF_OBSERVATIONS))
        return (
            request.as_list(agent_episodes, timeline) if return_list else request.by_env_steps(agent_episodes, timeline)
        )

    def _asked_for(self, agent_ids: AgentIDs) -> AgentEpisodes:
        agent_episodes = self.agent_episodes
        if agent_ids is None or (isinstance(agent_ids, (list, tuple, set)) and not agent_ids):
            return agent_episodes
        if isinstance(agent_ids, Hashable) and agent_ids in agent_episodes:  # checked first, since an id may be a tuple
            return {agent_ids: agent_episodes[agent_ids]}
        several = isinstance(agent_ids, Collection) and not isinstance(agent_ids, (str, bytes))
        wanted = set(agent_ids) if several and isinstance(agent_ids, Collection) else {agent_ids}
        return {agent: agent_episode for agent, agent_episode in agent_episodes.items() if agent in wanted}

    def _with_output(self, agent_episodes: AgentEpisodes, request: Request) -> AgentEpisodes:
        """Select the agents that have the requested output, or any extra output if none is named."""
        key = request.key
        having = {
            agent: agent_episode for agent, agent_episode in agent_episodes.items()
            if agent in request.opened
            or (agent_episode.extra_model_output_keys if key is None else key in agent_episode.extra_model_output_keys)
        }  # fmt: skip
        if agent_episodes and not having and key is not None:
            known = sorted(
                {known for agent_episode in agent_episodes.values() for known in agent_episode.extra_model_output_keys},
                key=str,
            )
            raise KeyError(f"none of the requested agents has an extra model output {key!r}; available: {known}")
        return having

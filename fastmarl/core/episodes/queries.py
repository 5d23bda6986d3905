"""Lookups in the columns of several agents, by env step or by agent step."""

from collections.abc import Collection, Hashable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fastmarl.core.episodes.common import OF_OBSERVATIONS
from fastmarl.core.episodes.indices import Column, Indices, Timeline, has_any, item, look_up, rows_at, select
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import blank_like, joined
from fastmarl.core.spaces.structs import map_struct

AgentID = Hashable
AgentIDs = AgentID | Collection[AgentID] | None
AgentEpisodes = dict[AgentID, SingleAgentEpisode]


class Query(NamedTuple):
    """The arguments of a `MultiAgentEpisode` getter, except the agents.

    `opened` maps agent ids to an additional column item that belongs to the agent's pending action.
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
            raise TypeError(f"indices must be a slice, a list or None with return_list=True, got {self.indices!r}")
        answers: list[dict[AgentID, Any]] = [{} for _ in times]
        for agent, agent_episode in agent_episodes.items():
            rows = rows_at(times, self._env_ts(agent, agent_episode), True)
            assert isinstance(rows, np.ndarray)
            steps = np.arange(len(rows)) if self.fill is not None else np.flatnonzero(rows >= 0)
            values = select(self._column(agent, agent_episode), rows[steps], self.fill, self.one_hot)
            for i, step in enumerate(steps.tolist()):
                answers[step][agent] = item(values, i)
        return answers

    def with_output(self, agent_episodes: AgentEpisodes) -> AgentEpisodes:
        """Select the agents that have the requested output, or any extra output if `key` is None."""
        key = self.key
        having = {
            agent: agent_episode for agent, agent_episode in agent_episodes.items()
            if agent in self.opened
            or (agent_episode.extra_model_output_keys if key is None else key in agent_episode.extra_model_output_keys)
        }  # fmt: skip
        if agent_episodes and not having and key is not None:
            known = sorted(
                {known for agent_episode in agent_episodes.values() for known in agent_episode.extra_model_output_keys},
                key=str,
            )
            raise KeyError(f"none of the requested agents has an extra model output {key!r}; available: {known}")
        return having

    def _env_ts(self, agent: AgentID, agent_episode: SingleAgentEpisode) -> np.ndarray:
        """Return the env step of each item in the column."""
        has_all = self.what in OF_OBSERVATIONS or agent in self.opened
        return agent_episode.env_ts() if has_all else agent_episode.env_ts()[:-1]

    def _column(self, agent: AgentID, agent_episode: SingleAgentEpisode) -> Column:
        if agent not in self.opened:
            return agent_episode.column(self.what, self.key)
        is_new = self.key is not None and self.key not in agent_episode.extra_model_output_keys
        column = Column(None) if is_new else agent_episode.column(self.what, self.key)
        n = agent_episode.source.n_obs - 1
        return column._replace(data=_with_item(column.data, n, self.opened[agent], self.key, self.what))


def asked_for(agent_episodes: AgentEpisodes, agent_ids: AgentIDs) -> AgentEpisodes:
    """Select agents by the argument `agent_ids` of a getter."""
    if agent_ids is None or (isinstance(agent_ids, (list, tuple, set)) and not agent_ids):
        return agent_episodes
    if isinstance(agent_ids, Hashable) and agent_ids in agent_episodes:  # checked first, since an id may be a tuple
        return {agent_ids: agent_episodes[agent_ids]}
    several = isinstance(agent_ids, Collection) and not isinstance(agent_ids, (str, bytes))
    wanted = set(agent_ids) if several and isinstance(agent_ids, Collection) else {agent_ids}
    return {agent: agent_episode for agent, agent_episode in agent_episodes.items() if agent in wanted}


def _with_item(data: Any, n: int, item: Any, key: str | None, what: str) -> Any:
    """Append an item (None: a blank) to a column of n items, or to each column in the dict of all extra outputs."""
    if what == "extra_model_outputs" and key is None:
        data = data or {}
        return {each: _with_item(data.get(each), n, item.get(each), each, what) for each in {**data, **item}}
    last = blank_like(data, 1, str(key)) if item is None else map_struct(lambda leaf: np.asarray(leaf)[None], item)
    if not n:
        return last
    return joined([blank_like(last, n, str(key)) if data is None else data, last])

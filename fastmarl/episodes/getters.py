"""The getters of `MultiAgentEpisode`: columns of many agents, looked up by env steps or by each agent's own steps."""

import sys
from collections.abc import Collection, Hashable
from typing import Any, NamedTuple

import numpy as np

from fastmarl.episodes.indices import Column, Indices, Timeline, count, filling, item, rows_at, rows_of, select
from fastmarl.episodes.lazy import LazyEpisode
from fastmarl.episodes.single_agent import OF_OBSERVATIONS, SingleAgentEpisode
from fastmarl.errors import EpisodeError

AgentID = Hashable
AgentIDs = AgentID | Collection[AgentID] | None
Parts = dict[AgentID, SingleAgentEpisode]


class Request(NamedTuple):
    """What a getter was asked for, apart from the agents."""

    what: str
    key: str | None
    indices: Indices
    neg_index_as_lookback: bool
    fill: Any
    one_hot: bool

    def by_agent_steps(self, parts: Parts) -> dict[AgentID, Any]:
        answers = {agent: part.get(*self) for agent, part in parts.items()}
        return {agent: values for agent, values in answers.items() if not (isinstance(values, list) and not values)}

    def by_env_steps(self, parts: Parts, timeline: Timeline) -> dict[AgentID, Any]:
        filled = self.fill is not None
        times = timeline.times(self.indices, self.neg_index_as_lookback, clip=not filled)
        single = isinstance(times, int)
        wanted = [times] if isinstance(times, int) else times
        if not filled and isinstance(wanted, list):
            timeline.check(wanted)
        answer = {}
        for agent, part in parts.items():
            rows = rows_at(wanted, self._env_ts(part), filled)
            if not count(rows):
                continue
            column = part.column(self.what, self.key)
            if single and isinstance(rows, np.ndarray) and rows[0] < 0:
                answer[agent] = filling(column, self.fill, self.one_hot)
            else:
                chosen = int(rows[0]) if single and isinstance(rows, np.ndarray) else rows
                answer[agent] = select(column, chosen, self.fill, self.one_hot)
        return answer

    def as_list(self, parts: Parts, timeline: Timeline) -> list[dict[AgentID, Any]]:
        times = timeline.times(self.indices, self.neg_index_as_lookback, clip=False)
        if isinstance(times, int):
            raise TypeError(f"return_list=True needs a slice, a list or None as indices, got {self.indices!r}")
        answers: list[dict[AgentID, Any]] = [{} for _ in times]
        for agent, part in parts.items():
            rows = rows_at(times, self._env_ts(part), True)
            assert isinstance(rows, np.ndarray)
            steps = np.arange(len(rows)) if self.fill is not None else np.flatnonzero(rows >= 0)
            values = select(part.column(self.what, self.key), rows[steps], self.fill, self.one_hot)
            for i, step in enumerate(steps.tolist()):
                answers[step][agent] = item(values, i)
        return answers

    def _env_ts(self, part: SingleAgentEpisode) -> np.ndarray:
        """Env steps of the column's items."""
        return part.env_ts() if self.what in OF_OBSERVATIONS else part.env_ts()[:-1]


class Getters(LazyEpisode):
    """The getters; see `MultiAgentEpisode` for the arguments."""

    __slots__ = ()

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
        """Agent -> observations."""
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
        """Agent -> list of infos, also where they are filled."""
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
        """Agent -> the policy's raw actions; the unanswered action of a waiting agent is in the next chunk."""
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
        """Agent -> rewards, float64."""
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
        """Agent -> what its module gave out under `key` (None: dict of all). Agents without it are left out.

        Raises:
            KeyError: no agent has such an output.
        """
        request = Request("extra_model_outputs", key, indices, neg_index_as_lookback, fill, False)
        return self._answer(request, agent_ids, env_steps, return_list)

    @property
    def env_states(self) -> np.ndarray | None:
        """All that are known [n, ...], the last one at `env_t`; None if none were recorded."""
        chunk = self.chunk
        if isinstance(chunk.env_states, list):
            chunk.env_states = np.concatenate(chunk.env_states)
        return chunk.env_states

    def get_env_states(self, indices: Indices = None, *, neg_index_as_lookback: bool = False) -> np.ndarray:
        """The env's global states [len + 1, ...], from `env_t_started` to `env_t`; option `record_env_state`.

        Args:
            indices: env steps, 0 being `env_t_started`, as in `SingleAgentEpisode`. Views, except of a list.

        Raises:
            EpisodeError: none were recorded.
            IndexError: there is none at an index.
        """
        states = self.env_states
        if states is None:
            raise EpisodeError(f"episode {self.id_!r} has no env states; sample with record_env_state=True")
        timeline = Timeline(0, len(states) - 1 - (self.env_t - self.env_t_started), len(states))
        times = timeline.times(indices, neg_index_as_lookback, clip=True)
        if isinstance(times, int):
            timeline.check([times])
            states_at: np.ndarray = select(Column(states), times)
            return states_at
        if isinstance(times, list):
            timeline.check(times)
        chosen: np.ndarray = select(Column(states), rows_of(times, timeline, False))
        return chosen

    def _states_of(self, states: np.ndarray, parts: Parts, known: list[Any], since: int, end: int) -> np.ndarray:
        """Of those kept: from env step `since` to `end`, and earlier ones upon which agents acted who then waited."""
        first = self.env_t + 1 - len(states)
        acted_at = [int(part.env_ts()[part.lookback]) for part in parts.values()]
        for agent in known:
            if agent not in parts:
                whole = self.agent_episodes.get(agent)
                before = np.zeros(0) if whole is None else whole.env_ts()[whole.env_ts() <= end]
                acted_at.append(int(before[-1]) if len(before) else first)  # else it waits since an earlier chunk
        return states[max(min([since, *acted_at]) - first, 0) : end + 1 - first]

    def print(self) -> None:
        """Print a table: agents by env steps, x where the agent had an observation."""
        steps = np.arange(self.env_t_started - self.lookback, self.env_t + 1)
        names = [str(agent) for agent in self.agent_episodes]
        width = max(map(len, [*names, "env_t"]))
        cell = len(str(self.env_t)) + 2
        lines = ["env_t".ljust(width) + "".join(f"{step:{cell}}" for step in steps)]
        for name, part in zip(names, self.agent_episodes.values(), strict=True):
            marks = np.where(np.isin(steps, part.env_ts()), "x", "")
            lines.append((name.ljust(width) + "".join(f"{mark:>{cell}}" for mark in marks)).rstrip())
        sys.stdout.write("\n".join(lines) + "\n")

    def _answer(self, request: Request, agent_ids: AgentIDs, env_steps: bool, return_list: bool) -> Any:
        if return_list and not env_steps:
            raise ValueError("return_list=True is a list of env steps, so it can't be had with env_steps=False")
        parts = self._asked_for(agent_ids)
        if request.what == "extra_model_outputs":
            parts = self._with_output(parts, request.key)
        if not parts:
            return [] if return_list else {}
        if not env_steps:
            return request.by_agent_steps(parts)
        chunk = self.chunk
        first = min(chunk.env_t_started - chunk.lookback, *(int(part.env_ts()[0]) for part in parts.values()))
        timeline = Timeline(first, chunk.env_t_started, chunk.env_t + (request.what in OF_OBSERVATIONS))
        return request.as_list(parts, timeline) if return_list else request.by_env_steps(parts, timeline)

    def _asked_for(self, agent_ids: AgentIDs) -> Parts:
        parts = self.agent_episodes
        if agent_ids is None or (isinstance(agent_ids, (list, tuple, set)) and not agent_ids):
            return parts
        if isinstance(agent_ids, Hashable) and agent_ids in parts:  # before the next: a tuple may be an id
            return {agent_ids: parts[agent_ids]}
        several = isinstance(agent_ids, Collection) and not isinstance(agent_ids, (str, bytes))
        wanted = set(agent_ids) if several and isinstance(agent_ids, Collection) else {agent_ids}
        return {agent: part for agent, part in parts.items() if agent in wanted}

    def _with_output(self, parts: Parts, key: str | None) -> Parts:
        """The agents whose modules gave out `key`; for None, those with any extra output."""
        having = {
            agent: part for agent, part in parts.items()
            if (part.extra_model_output_keys if key is None else key in part.extra_model_output_keys)
        }  # fmt: skip
        if parts and not having and key is not None:
            known = sorted({known for part in parts.values() for known in part.extra_model_output_keys}, key=str)
            raise KeyError(f"no agent asked for has an extra model output {key!r}; there are {known}")
        return having

"""Episode chunks built from the files of a part.

Axes in names: S trajectory.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import ArraySource
from fastmarl.core.spaces.columns import Columns
from fastmarl.offline.columns_of_file import FileColumns
from fastmarl.offline.form import CHUNK, ENV_T, FINAL_INFOS, T, nest
from fastmarl.offline.json_values import agent_from_text, from_json

Files = Iterable[tuple[str, FileColumns]]


def episodes_of(states: list[dict[str, Any]], data: Files, lookback: Files) -> list[MultiAgentEpisode]:
    """Build chunks from their states and the columns of agent steps.

    Args:
        states: One per chunk; see `chunk_states()`.
        data, lookback: Pairs (module id, columns), one for each data or lookback file of the part.
    """
    agents: list[dict[Any, SingleAgentEpisode]] = [{} for _ in states]
    lookbacks = {(module_id, columns.form): columns for module_id, columns in lookback}
    for module_id, columns in data:
        before = lookbacks.get((module_id, columns.form))
        for chunk, agent_episode in _agent_episodes(module_id, columns, before, states):
            agents[chunk][agent_episode.agent_id] = agent_episode
    return [_episode(state, of_chunk) for state, of_chunk in zip(states, agents, strict=True)]


def _episode(state: dict[str, Any], agents: dict[Any, SingleAgentEpisode]) -> MultiAgentEpisode:
    state = dict(state)
    waiting, order = state.pop("waiting_infos"), state.pop("order")
    for each in state.pop("without_steps"):
        agents[each["agent_id"]] = SingleAgentEpisode.from_state(each)
    for agent, (id_, custom_data, whose) in state.pop("of_agents").items():
        agents[agent]._id, agents[agent]._custom_data = id_, custom_data
        agents[agent].multi_agent_episode_id = whose
    order = [agent for agent in state["agent_ids"] if agent in agents] if order is None else order
    return MultiAgentEpisode.of_agents(
        agent_episodes={agent: agents[agent] for agent in order}, waiting_infos=waiting, **state
    )


def _agent_episodes(
    module_id: str, columns: FileColumns, lookback: FileColumns | None, states: list[dict[str, Any]]
) -> Iterable[tuple[int, SingleAgentEpisode]]:
    """Yield (chunk index, agent episode) for each trajectory in a file."""
    end_S = columns.end_S
    begin_S = np.append(0, end_S[:-1]).astype(np.int64)
    chunk_S = columns.numbers(CHUNK)[begin_S].tolist()
    agent_S = columns.texts(Columns.AGENT_ID, begin_S)
    before_S = _lookbacks(lookback, list(zip(chunk_S, agent_S, strict=True)))
    whole = _Whole(columns, lookback, begin_S, end_S, before_S)
    ids: dict[Any, Any] = {text: agent_from_text(text) for text in set(agent_S) if text is not None}
    t_S = columns.numbers(T)[begin_S].tolist()
    flags = [columns.numbers(name)[end_S - 1].tolist() for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)]
    for s, (chunk, agent) in enumerate(zip(chunk_S, agent_S, strict=True)):
        yield (
            chunk,
            SingleAgentEpisode.of(
                agent_id=ids[agent],
                module_id=module_id,
                multi_agent_episode_id=states[chunk]["id_"],
                observation_space=None,
                action_space=None,
                source=whole.source(s),
                lookback=len(before_S[s]),
                t_started=t_S[s],
                is_terminated=flags[0][s],
                is_truncated=flags[1][s],
            ),
        )


def _lookbacks(lookback: FileColumns | None, trajectories: list[tuple[int, str | None]]) -> list[range]:
    """Return the rows of each trajectory (chunk, agent) in the lookback file."""
    if lookback is None:
        return [range(0)] * len(trajectories)
    keys = list(zip(lookback.numbers(CHUNK).tolist(), lookback.texts(Columns.AGENT_ID), strict=True))
    edges = [0, *(i + 1 for i, (one, other) in enumerate(pairwise(keys)) if one != other), len(keys)]
    rows = {keys[begin]: range(begin, end) for begin, end in pairwise(edges)}
    return [rows.get(key, range(0)) for key in trajectories]


class _Whole:
    """Concatenated trajectories, each preceded by its lookback and followed by its final observation."""

    def __init__(
        self,
        columns: FileColumns,
        lookback: FileColumns | None,
        begin_S: np.ndarray,
        end_S: np.ndarray,
        before_S: list[range],
    ):
        self._form = columns.form
        n_before_S = np.array([len(rows) for rows in before_S], np.int64)
        n_S = n_before_S + end_S - begin_S  # steps
        self._end_S = np.cumsum(n_S)
        self._begin_S = self._end_S - n_S
        n_obs = len(columns.form.obs_leaves)
        # The source row of each step. Rows of the lookback file come first.
        n_lookback = 0 if lookback is None else lookback.n_rows
        row = np.empty(int(n_S.sum()), np.int64)
        for begin, n_before, first, end, rows in zip(
            self._begin_S.tolist(), n_before_S.tolist(), begin_S.tolist(), end_S.tolist(), before_S, strict=True
        ):
            row[begin : begin + n_before] = rows
            row[begin + n_before : begin + n_before + end - first] = range(n_lookback + first, n_lookback + end)
        # Observations have one more row per trajectory.
        at_last = self._end_S + np.arange(len(n_S))
        is_step = np.ones(len(row) + len(n_S), bool)
        is_step[at_last] = False

        def steps(name: Any) -> np.ndarray:
            own = columns.leaf(name) if not isinstance(name, str) else columns.numbers(name)
            if lookback is None:
                return own
            before = lookback.leaf(name) if not isinstance(name, str) else lookback.numbers(name)
            return np.concatenate([before, own], dtype=own.dtype)[row]  # keeps the byte order

        def with_final(values: np.ndarray, finals: np.ndarray) -> np.ndarray:
            whole = np.empty((len(is_step), *values.shape[1:]), values.dtype)
            whole[is_step], whole[at_last] = values, finals
            return whole

        self._leaves = [steps(leaf) for leaf in columns.form.leaves]
        finals = columns.final_obs()
        self._leaves[:n_obs] = map(with_final, self._leaves[:n_obs], finals)
        self._n_obs = n_obs
        self._rewards = steps(Columns.REWARDS)
        self._env_ts = with_final(steps(ENV_T), columns.final_env_t_S)
        self._infos = self._texts(columns, lookback, row, end_S)

    def source(self, s: int) -> ArraySource:
        """Return the columns of a single trajectory."""
        begin, end = int(self._begin_S[s]), int(self._end_S[s])
        steps, obs = slice(begin, end), slice(begin + s, end + s + 1)
        leaves = [leaf[obs if index < self._n_obs else steps] for index, leaf in enumerate(self._leaves)]
        form = self._form
        infos = None
        if self._infos is not None:
            texts = [*self._infos[0][begin:end], self._infos[1][s]]
            infos = [{} if text is None else from_json(text) for text in texts]
        extras: dict[Any, Any] = {name: nest(struct, leaves) for name, struct in form.outputs.items()}
        return ArraySource(
            observations=nest(form.obs, leaves),
            env_ts=self._env_ts[obs],
            actions=nest(form.actions, leaves),
            rewards=self._rewards[steps],
            infos=infos,
            extras=extras,
        )

    @staticmethod
    def _texts(
        columns: FileColumns, lookback: FileColumns | None, row: np.ndarray, end_S: np.ndarray
    ) -> tuple[list, list] | None:
        """Return the JSON of (infos of the steps, infos of the final observations), or None if there are no infos."""
        files = [columns] if lookback is None else [lookback, columns]
        if not columns.has_any(FINAL_INFOS) and not any(each.has_any(Columns.INFOS) for each in files):
            return None
        texts = [text for each in files for text in each.texts(Columns.INFOS)]
        return [texts[i] for i in row.tolist()], columns.texts(FINAL_INFOS, end_S - 1)

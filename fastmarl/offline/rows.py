"""Conversion of episodes to Arrow tables with one row per agent step.

Axes in names: S trajectory (an agent episode), N step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastmarl.core.batches.agent_episode_table import CHUNK as CHUNK_S
from fastmarl.core.batches.agent_episode_table import SOURCE, T_STARTED, AgentEpisodeTable
from fastmarl.core.batches.trajectories import Trajectories
from fastmarl.core.episodes.chunk import ChunkHead
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.sources import Source
from fastmarl.core.native import _steps
from fastmarl.core.native._garbage import without_collection
from fastmarl.core.spaces.columns import Columns, OwnName, Recorded, recorded_name
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.core.store.block import Block
from fastmarl.offline.arrow import load
from fastmarl.offline.form import (
    CHUNK,
    ENV_T,
    FINAL_ENV_T,
    FINAL_INFOS,
    IDS,
    MODULE_ID,
    T,
    TableForm,
    flatten_leaves,
    numbers,
    without_texts,
)
from fastmarl.offline.json_values import agent_text, plain_text, to_json

MOST_FORMS = 1024  # forms in the cache


class ModuleTable(NamedTuple):
    """Rows of a module with the same form."""

    module_id: str
    form: TableForm
    table: Any  # steps
    lookback: Any  # lookback steps, which are also in earlier chunks; None if there are none


class RowMaker:
    """Converts episodes to tables.

    Args:
        columns: Names of module outputs to keep, which may include "infos"; None keeps everything. Action masks are
            always kept.
        next_obs: Whether rows also contain the observation after the step.
    """

    def __init__(self, columns: Collection[str] | None, *, next_obs: bool):
        self._columns = columns
        self.next_obs = next_obs
        self.keeps_infos = columns is None or Columns.INFOS in columns
        self._form_of: dict[tuple, tuple[TableForm, RowLayout]] = {}

    def rows(
        self,
        table: AgentEpisodeTable,
        episodes: Sequence[MultiAgentEpisode],
        heads: Sequence[ChunkHead | None],
        first_chunk: int,
    ) -> list[ModuleTable]:
        """Return a table for each module and form.

        Args:
            table: The agent episodes of the chunks.
            episodes: The chunks.
            heads: The head of each chunk, or None; see `MultiAgentEpisode.head()`.
            first_chunk: Index of the first chunk in the column "chunk".

        Raises:
            OfflineError: If a chunk contains a value that Parquet or JSON cannot represent.
        """
        form_of_source = list(map(self._form, table.sources))
        infos = _Infos(episodes, heads) if self.keeps_infos else None
        found = []
        for module_id, chosen in table.by_module().items():
            for form, of_form in _by_form(table, chosen, form_of_source):
                trajectories = Trajectories(table, of_form)
                rows = _FormRows(trajectories, form, module_id, infos, first_chunk, next_obs=self.next_obs)
                found.append(ModuleTable(module_id, form, rows.steps(), rows.lookback()))
        return found

    def _form(self, source: Block | Source) -> TableForm:
        return self._form_of_block(source) if isinstance(source, Block) else self._made_form(source)

    def _form_of_block(self, block: Block) -> TableForm:
        """Return the form of a block; blocks with the same layout and outputs share a cached form."""
        outputs = tuple((key, leaf.dtype, leaf.shape[1:]) for key, leaf in block.outputs.items())
        key = id(block.layout), outputs
        if key not in self._form_of:
            if len(self._form_of) >= MOST_FORMS:
                self._form_of.clear()
            self._form_of[key] = self._made_form(block), block.layout  # keeps the layout alive, and thus its id() valid
        return self._form_of[key][0]

    def _made_form(self, source: Block | Source) -> TableForm:
        output: Callable[[Any], Any]
        if isinstance(source, Block):
            obs, actions = source.layout.nest(list(source.obs)), source.output(Columns.ACTIONS)
            names, output = source.output_keys(), source.output
        else:
            obs, actions, names, output = source.observations(), source.actions(), source.extra_keys(), source.extra
        wanted, masks = self._columns, recorded_name(Recorded.ACTION_MASK, names)
        kept = names if wanted is None else [name for name in names if _plain(name) in wanted or name == masks]
        return TableForm.of(obs, actions, [(name, output(name)) for name in kept])


def _by_form(
    table: AgentEpisodeTable, chosen: np.ndarray, form_of_source: Sequence[TableForm]
) -> Iterator[tuple[TableForm, np.ndarray]]:
    """Yield each form with the agent episodes among `chosen` that have it."""
    index_of = {form: index for index, form in enumerate(dict.fromkeys(form_of_source))}
    forms = list(index_of)
    if len(forms) == 1:
        yield forms[0], chosen
        return
    index_of_source = np.array([index_of[form] for form in form_of_source])
    index_s = index_of_source[table.numbers[chosen, SOURCE]]
    for index in dict.fromkeys(index_s.tolist()):
        yield forms[index], chosen[index_s == index]


def _plain(name: OwnName) -> Any:
    return name.value if isinstance(name, Recorded) else name


class _Infos:
    """Agent infos of chunks, keyed by env step."""

    def __init__(self, episodes: Sequence[MultiAgentEpisode], heads: Sequence[ChunkHead | None]):
        self._episodes = episodes
        self._of_chunk: list[dict[Hashable, dict[int, Any]]] = without_collection(list, map(_infos_of, episodes, heads))

    def of(self, chunk: int, agent_id: Hashable) -> dict[int, Any]:
        return self._of_chunk[chunk].get(agent_id, {})

    def are_there(self, chunks: Sequence[int]) -> bool:
        return any(self._of_chunk[chunk] for chunk in chunks)

    def name(self, chunk: int) -> str:
        return self._episodes[chunk].id_


def _infos_of(episode: MultiAgentEpisode, head: ChunkHead | None) -> dict[Hashable, dict[int, Any]]:
    """Return agent id -> env step -> info for the non-empty infos of a chunk."""
    if head is not None:
        return {}
    chunk = episode.chunk
    lanes = chunk.lanes
    if chunk.agent_episodes is None and lanes is not None:
        if not lanes.infos:
            return {}
        by_lane = zip(lanes.agent_ids, lanes.lanes, strict=True)
        return {agent: lanes.infos[lane] for agent, lane in by_lane if lane in lanes.infos}
    found: dict[Hashable, dict[int, Any]] = {}
    for agent, agent_episode in episode.agent_episodes.items():
        infos = agent_episode.source.infos()
        if any(infos):
            found[agent] = {
                t: info for t, info in zip(agent_episode.source.env_ts().tolist(), infos, strict=True) if info
            }
    return found


class _FormRows:
    """Rows of the trajectories of a module that have the same form."""

    def __init__(
        self,
        trajectories: Trajectories,
        form: TableForm,
        module_id: str,
        infos: _Infos | None,
        first_chunk: int,
        *,
        next_obs: bool,
    ):
        self._trajectories, self._form = trajectories, form
        self._next_obs = next_obs
        self._schema = form.schema(next_obs=self._next_obs)
        self._chunk_S = trajectories.numbers[:, CHUNK_S]
        self._number_S = (self._chunk_S + first_chunk).astype(np.int32)
        self._t_started_S = trajectories.numbers[:, T_STARTED]
        self._ids = {
            Columns.EPS_ID: _Encoded(trajectories.episode_ids, plain_text),
            Columns.AGENT_ID: _Encoded(trajectories.agent_ids, agent_text),
            MODULE_ID: _Encoded([module_id] * len(self._chunk_S), plain_text),
        }
        self._infos = infos if infos is not None and infos.are_there(self._chunk_S.tolist()) else None

    def steps(self) -> Any:
        """Return the table of all steps except lookbacks."""
        trajectories = self._trajectories
        length_S = trajectories.length_S
        steps = trajectories.steps_after_lookback()
        columns = self._columns(steps, length_S, self._t_started_S)
        columns |= trajectories.end_flags()
        columns |= self._finals(_steps.ends(length_S), len(steps))
        if self._next_obs:
            columns |= self._other_obs(Columns.NEXT_OBS, trajectories.obs_after(steps))
        return self._table(columns, len(steps))

    def lookback(self) -> Any:
        """Return the table of lookback steps, with nulls in columns used only in the last row of a trajectory."""
        trajectories = self._trajectories
        lookback_S = trajectories.lookback_S
        n = int(lookback_S.sum())
        if not n:
            return None
        steps = _steps.ranges(trajectories.begin_S, lookback_S)
        return self._table(self._columns(steps, lookback_S, self._t_started_S - lookback_S), n)

    def _columns(self, steps: np.ndarray, n_S: np.ndarray, t_S: np.ndarray) -> dict[str, Any]:
        """Return the columns used in all rows; each trajectory has `n_S` of these steps, starting at step `t_S`."""
        trajectories, form = self._trajectories, self._form
        env_t = trajectories.env_ts(steps)
        columns: dict[str, Any] = {name: self._ids[name].repeated(n_S) for name in IDS}
        columns[CHUNK] = np.repeat(self._number_S, n_S)
        columns[T] = _steps.ranges(t_S, n_S)
        columns[ENV_T] = env_t
        read = trajectories.read_all((Columns.OBS, Columns.ACTIONS, Columns.REWARDS), steps)
        columns[Columns.REWARDS] = read[Columns.REWARDS]
        outputs = trajectories.read_outputs(form.outputs, steps)
        of_form = [(form.obs, read[Columns.OBS]), (form.actions, read[Columns.ACTIONS])]
        of_form += [(struct, outputs[name]) for name, struct in form.outputs.items()]
        for struct, column in of_form:
            for leaf, (_, array) in zip(flatten_leaves(struct), flatten_struct(column), strict=True):
                described = form.leaves[leaf.number]
                if described.arrow_type() is not None:
                    columns[described.name] = described.to_arrow(array)
        if self._infos is not None:
            columns[Columns.INFOS] = self._texts_of_infos(env_t, n_S)
        return columns

    def _texts_of_infos(self, env_t: np.ndarray, n_S: np.ndarray) -> list[str | None]:
        texts: list[str | None] = [None] * len(env_t)
        assert self._infos is not None
        end = 0
        for agent_id, chunk, n in zip(self._trajectories.agent_ids, self._chunk_S.tolist(), n_S.tolist(), strict=True):
            begin, end = end, end + n
            infos = self._infos.of(chunk, agent_id)
            for row, t in enumerate(env_t[begin:end].tolist() if infos else (), begin):
                texts[row] = self._text_of_info(infos, t, chunk, agent_id)
        return texts

    def _text_of_info(self, infos: dict[int, Any], t: int, chunk: int, agent_id: Hashable) -> str | None:
        info = infos.get(t)
        assert self._infos is not None
        if not info:
            return None
        return to_json(info, f"the info of agent {agent_id!r} at env step {t} of episode {self._infos.name(chunk)!r}")

    def _finals(self, last_S: np.ndarray, n: int) -> dict[str, Any]:
        """Return the columns (`n` rows each) that are filled only in the last row of each trajectory."""
        is_last = _steps.put(np.ones(len(last_S), bool), last_S, n)
        final_env_t_S = self._trajectories.final_env_t()
        columns = {FINAL_ENV_T: numbers(_steps.put(final_env_t_S, last_S, n), is_last)}
        if self._infos is not None:
            texts: list[str | None] = [None] * n
            chunks = self._chunk_S.tolist()
            for row, t, chunk, agent in zip(
                last_S.tolist(), final_env_t_S.tolist(), chunks, self._trajectories.agent_ids, strict=True
            ):
                texts[row] = self._text_of_info(self._infos.of(chunk, agent), t, chunk, agent)
            columns[FINAL_INFOS] = texts
        finals = flatten_struct(self._trajectories.final_obs())
        for described, (_, leaf) in zip(self._form.of_obs(Columns.FINAL_OBS), finals, strict=True):
            if described.arrow_type() is not None:
                columns[described.name] = described.to_arrow(_steps.put(leaf, last_S, n), is_last)
        return columns

    def _other_obs(self, name: str, obs: Any) -> dict[str, Any]:
        leaves = zip(self._form.of_obs(name), flatten_struct(obs), strict=True)
        return {
            described.name: described.to_arrow(leaf)
            for described, (_, leaf) in leaves
            if described.arrow_type() is not None
        }

    def _table(self, columns: dict[str, Any], n: int) -> Any:
        arrays = [_column(columns.get(field.name), field.type, n) for field in self._schema]
        return load().Table.from_arrays(arrays, schema=self._schema)


def _column(values: Any, kind: Any, n: int) -> Any:
    """Return an Arrow array of this type from a NumPy array, an Arrow array or strings; nulls for None."""
    pa = load()
    if values is None:
        return without_texts(n) if kind == pa.string() else pa.nulls(n, kind)
    if not isinstance(values, np.ndarray):
        return pa.array(values, kind)
    array = numbers(values)
    return array if array.type == kind else array.cast(kind)


class _Encoded:
    """Ids encoded as strings, each of which is stored once.

    Args:
        ids: Ids, one per trajectory.
        text_of: Function that converts an id to a string, called once per object.
    """

    def __init__(self, ids: list[Any], text_of: Callable[[Any], str]):
        self._texts, self._code_S = _steps.encoded(ids, text_of)

    def repeated(self, n_S: np.ndarray) -> Any:
        """Return a dictionary-encoded array that repeats the string of each trajectory `n_S` times."""
        pa = load()
        codes = numbers(np.repeat(self._code_S, n_S))
        return pa.DictionaryArray.from_arrays(codes, pa.array(self._texts, pa.string()), safe=False)

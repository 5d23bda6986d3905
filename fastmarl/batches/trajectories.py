"""Steps of many trajectories as one long column, read straight from the blocks they lie in.

Axes in names: S trajectory (an agent episode), N step. A *step* is a transition: an observation, the agent's
action on it, and its reward.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fastmarl.batches.agent_episode_table import (
    COUNT,
    DONE,
    END_ENV_T,
    FINAL,
    LOOKBACK,
    ROW,
    SOURCE,
    AgentEpisodeTable,
)
from fastmarl.columns import Columns, Recorded
from fastmarl.episodes.lazy import in_numbers
from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.episodes.single_agent import SingleAgentEpisode
from fastmarl.episodes.sources import Source, blank_like, joined
from fastmarl.errors import BatchError
from fastmarl.native import _store
from fastmarl.native._garbage import without_collection
from fastmarl.record.block import Block
from fastmarl.record.flags import TERMINATED, TRUNCATED
from fastmarl.spaces import flatten_struct, map_struct

RECORDED = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
STATES = (Columns.STATE_IN, Recorded.STATE_IN, Columns.STATE_OUT)
NOT_OUTPUTS = frozenset((
    Columns.OBS, Columns.NEXT_OBS, Columns.FINAL_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS,
    Columns.TRUNCATEDS, Columns.SEQ_LENS, Columns.LOSS_MASK, Columns.EPS_ID, Columns.AGENT_ID, Columns.ACTIVE,
    Columns.ENV_STATE, Columns.FINAL_T, Columns.FIRST_ENV_T,
))  # fmt: skip
"""Names of columns of batches that a module's output may have, too; there they mean what they always mean."""


class BlockRun:
    """Consecutive trajectories that lie in one block.

    Args:
        numbers: int64 [s, 10], see `AgentEpisodeTable`.
    """

    def __init__(self, block: Block, numbers: np.ndarray):
        self._block = block
        self._last_row_S, self._final_S, self._end_env_t_S = numbers[:, ROW], numbers[:, FINAL], numbers[:, END_ENV_T]
        has_ended = self._final_S >= 0  # else the agent has not acted on the last row
        last_S = np.where(has_ended, self._last_row_S, block.prev_R[self._last_row_S])
        self._row_N = _store.chains(block.prev_R, last_S, numbers[:, COUNT] - ~has_ended)
        self.n_steps = len(self._row_N)

    def output_keys(self) -> tuple[str, ...]:
        return self._block.output_keys()

    def rows(self, steps: np.ndarray) -> np.ndarray:
        """Where these steps are, for `read()` and `env_ts()`."""
        return self._row_N.take(steps)

    def read(self, name: str, rows: np.ndarray) -> Any:
        block = self._block
        if name == Columns.REWARDS:
            return block.recorded_rewards(block.reward_R.take(rows))
        if name != Columns.OBS:
            return self.read_output(name, rows)
        return map_struct(lambda leaf: leaf.take(rows, 0), block.layout.nest(list(block.obs)))

    def read_output(self, name: Any, rows: np.ndarray) -> Any:
        """An output of any name, also that of another column."""
        return map_struct(lambda leaf: leaf.take(rows, 0), self._block.output(name))

    def env_ts(self, rows: np.ndarray) -> np.ndarray:
        return self._block.env_t_R.take(rows)

    def final_obs(self) -> Any:
        block, has_ended = self._block, self._final_S >= 0
        leaves = [leaf.take(self._last_row_S, 0) for leaf in block.obs]
        for leaf, finals in zip(leaves, block.final_obs, strict=True):
            leaf[has_ended] = finals[self._final_S[has_ended]]
        return block.layout.nest(leaves)

    def final_env_t(self) -> np.ndarray:
        return np.where(self._final_S >= 0, self._end_env_t_S, self._block.env_t_R[self._last_row_S])


class SourceRun:
    """One trajectory whose columns are elsewhere: joined chunks, slices, restored ones."""

    def __init__(self, source: Source):
        self._source = source
        self.n_steps = source.n_obs - 1

    def output_keys(self) -> tuple[str, ...]:
        return self._source.extra_keys()

    def rows(self, steps: np.ndarray) -> np.ndarray:
        return steps

    def read(self, name: str, rows: np.ndarray) -> Any:
        source = self._source
        columns = {Columns.OBS: source.observations, Columns.ACTIONS: source.actions, Columns.REWARDS: source.rewards}
        if name not in columns:
            return self.read_output(name, rows)
        return map_struct(lambda leaf: leaf.take(rows, 0), columns[name]())

    def read_output(self, name: Any, rows: np.ndarray) -> Any:
        """An output of any name, also that of another column."""
        return map_struct(lambda leaf: leaf.take(rows, 0), self._source.extra(name))

    def env_ts(self, rows: np.ndarray) -> np.ndarray:
        return self._source.env_ts()[rows]

    def final_obs(self) -> Any:
        return map_struct(lambda leaf: leaf[-1:].copy(), self._source.observations())

    def final_env_t(self) -> np.ndarray:
        return self._source.env_ts()[-1:]


class Trajectories:
    """Agent episodes, one after the other; their lookbacks are steps like the others.

    Args:
        table: of agent episodes.
        chosen: int64 [s], which of them, each with a step or more; those of one block should be adjacent.

    Attributes:
        begin_S: int64, position of each trajectory's first step, the lookback's.
        lookback_S, length_S: int64, steps in the lookback and after it.
        ended_S: "terminateds" and "truncateds", bool.
    """

    def __init__(self, table: AgentEpisodeTable, chosen: np.ndarray):
        self._table, self._chosen = table, chosen
        numbers = table.numbers[chosen]
        self._runs, self._first_of_run = _runs(table.sources, numbers)
        self.lookback_S, self.length_S = numbers[:, LOOKBACK], table.length_S[chosen]
        total_S = self.lookback_S + self.length_S
        self.begin_S = np.cumsum(total_S) - total_S
        flags = {Columns.TERMINATEDS: TERMINATED, Columns.TRUNCATEDS: TRUNCATED}
        self.ended_S = {name: numbers[:, DONE] & flag > 0 for name, flag in flags.items()}
        self._first_step_of_run = np.cumsum([0] + [run.n_steps for run in self._runs[:-1]])

    @property
    def is_one_run(self) -> bool:
        """Whether all lie in one block, or there is one trajectory only."""
        return len(self._runs) == 1

    @property
    def first_S(self) -> np.ndarray:
        """int64: position of each trajectory's first step after the lookback."""
        return self.begin_S + self.lookback_S

    @property
    def last_S(self) -> np.ndarray:
        """int64: position of each trajectory's last step."""
        return self.first_S + self.length_S - 1

    def steps_after_lookback(self) -> np.ndarray:
        """int64 [N]: positions of all steps except the lookbacks'."""
        before_S = np.cumsum(self.length_S) - self.length_S
        return np.arange(self.length_S.sum()) + np.repeat(self.first_S - before_S, self.length_S)

    def end_flags(self) -> dict[str, np.ndarray]:
        """ "terminateds" and "truncateds", bool [N], of the steps after the lookbacks: True at the last ones."""
        flags = {name: np.zeros(int(self.length_S.sum()), bool) for name in self.ended_S}
        for name, ended_S in self.ended_S.items():
            flags[name][np.cumsum(self.length_S) - 1] = ended_S
        return flags

    def agent_id(self, index: int) -> Hashable:
        return self._table.agent_ids[self._chosen[index]]

    def episode_id(self, index: int) -> str | None:
        """Of the chunk."""
        return self._table.episode_ids[self._chosen[index]]

    def ids(self) -> dict[str, np.ndarray]:
        """ "eps_id" and "agent_id", object [S]."""
        table, chosen = self._table, self._chosen.tolist()
        agent_ids, episode_ids, own_ids = (
            [ids[s] for s in chosen] for ids in (table.agent_ids, table.episode_ids, table.own_ids)
        )
        ids = [
            f"{episode_id}_{agent_id}" if own_id is None else own_id
            for agent_id, episode_id, own_id in zip(agent_ids, episode_ids, own_ids, strict=True)
        ]
        return {Columns.EPS_ID: as_objects(ids), Columns.AGENT_ID: as_objects(agent_ids)}

    def output_keys(self) -> list[str]:
        """Names of the recorded outputs, of those that any trajectory has."""
        return list(dict.fromkeys(key for run in self._runs for key in run.output_keys()))

    def wanted_outputs(self, outputs: Collection[str] | None) -> list[str]:
        """These; None: those of all trajectories, but no recurrent states, and none with the name of another column.

        Raises:
            BatchError: one of them was not recorded, or has the name of another column.
        """
        recorded = self.output_keys()
        if outputs is None:
            of_all = set.intersection(*(set(run.output_keys()) for run in self._runs))
            return [key for key in recorded if key in of_all and key not in STATES and key not in NOT_OUTPUTS]
        if taken := [key for key in outputs if key in NOT_OUTPUTS]:
            raise BatchError(f"output {taken[0]!r} has the name of another column of batches; read it with "
                             f"get_extra_model_outputs(), or give the module's output another name")  # fmt: skip
        lacking = [key for key in outputs if key not in recorded]
        if lacking:
            raise BatchError(f"expected outputs among the recorded {recorded}, got {lacking[0]!r}")
        return list(outputs)

    def read(self, name: str, steps: np.ndarray) -> Any:
        """A column's items at these positions, nested as it is, copied; blank where a trajectory lacks an output.

        Args:
            name: one of RECORDED, or of a recorded output.
            steps: int64 [n]; unless `is_one_run`, the trajectories that they belong to must not decrease.

        Raises:
            BatchError: the trajectories' items have different dtypes, shapes or structures.
        """
        return self.read_all([name], steps)[name]

    def read_all(self, names: Iterable[str], steps: np.ndarray) -> dict[str, Any]:
        """Several columns at the same positions; see read()."""
        rows_of_runs = self._rows(steps)
        return {name: self._read(name, rows_of_runs) for name in names}

    def _read(self, name: str, rows_of_runs: list[np.ndarray]) -> Any:
        columns = [run.read(name, rows) if name in RECORDED or name in run.output_keys() else None
                   for run, rows in zip(self._runs, rows_of_runs, strict=True)]  # fmt: skip
        like = next(column for column in columns if column is not None)
        filled = [blank_like(like, len(rows), name) if column is None else column
                  for column, rows in zip(columns, rows_of_runs, strict=True)]  # fmt: skip
        return self._joined(name, filled)

    def read_outputs(self, names: Iterable[Any], steps: np.ndarray) -> dict[Any, Any]:
        """Outputs that all trajectories have, of any name, also that of another column; see read()."""
        rows_of_runs = self._rows(steps)
        return {
            name: self._joined(
                name, [run.read_output(name, rows) for run, rows in zip(self._runs, rows_of_runs, strict=True)]
            )
            for name in names
        }

    def env_ts(self, steps: np.ndarray) -> np.ndarray:
        """int64 [n]: the env step at which each observation arrived; `steps` as in read()."""
        found = [run.env_ts(rows) for run, rows in zip(self._runs, self._rows(steps), strict=True)]
        return np.concatenate(found, dtype=np.int64)

    def _rows(self, steps: np.ndarray) -> list[np.ndarray]:
        """Of each run, where its steps are."""
        return [run.rows(piece) for run, piece in zip(self._runs, self._pieces(steps), strict=True)]

    def _pieces(self, steps: np.ndarray) -> list[np.ndarray]:
        """Of each run, the positions in it."""
        if len(self._runs) == 1:
            return [steps]
        run_of = np.searchsorted(self._first_step_of_run, steps, "right") - 1
        pieces = np.split(steps, np.searchsorted(run_of, np.arange(1, len(self._runs))))
        return [piece - first for piece, first in zip(pieces, self._first_step_of_run, strict=True)]

    def final_obs(self) -> Any:
        """The observation after each trajectory's last step, [S, ...], copied.

        Raises:
            BatchError: see read().
        """
        return self._joined(Columns.OBS, [run.final_obs() for run in self._runs])

    def obs_after(self, steps: np.ndarray) -> Any:
        """The observation after each of these steps, copied: the next step's, or the trajectory's final one.

        Args:
            steps: int64 [n], ascending, with the last step of each trajectory among them.
        """
        is_last_step = np.zeros(self.last_S[-1] + 1, bool)
        is_last_step[self.last_S] = True
        is_last = is_last_step[steps]
        finals = iter(flatten_struct(self.final_obs()))

        def with_finals(leaf: np.ndarray) -> np.ndarray:
            leaf[is_last] = next(finals)[1]
            return leaf

        return map_struct(with_finals, self.read(Columns.OBS, steps + ~is_last))

    def final_env_t(self) -> np.ndarray:
        """int64 [S]: env step of the observation after each trajectory's last step."""
        return np.concatenate([run.final_env_t() for run in self._runs]).astype(np.int64)

    def _joined(self, name: str, columns: list[Any]) -> Any:
        if len(columns) == 1:
            return columns[0]
        expected = _form(columns[0])
        for column, first in zip(columns, self._first_of_run, strict=True):
            if (form := _form(column)) != expected:
                agents = self.agent_id(0), self.agent_id(first)
                raise BatchError(f"{name!r} of agent {agents[1]!r} is {_text(form)}, but that of agent {agents[0]!r} "
                                 f"is {_text(expected)}; they can't be in one column, so keep these agents in modules "
                                 f"or groups of their own")  # fmt: skip
        return joined(columns)


def by_module(episodes: Iterable[MultiAgentEpisode]) -> dict[str, Trajectories]:
    """Module id -> trajectories of its agents: episodes in order, in each the agents in order of appearance."""
    table = without_collection(AgentEpisodeTable, in_numbers(episodes))
    return {module_id: Trajectories(table, chosen) for module_id, chosen in table.by_module().items()}


def trajectories_of(agent_episodes: Iterable[SingleAgentEpisode]) -> Trajectories:
    """These, each with a step or more; those of one block should be adjacent."""
    table = AgentEpisodeTable.of(agent_episodes)
    return Trajectories(table, np.arange(len(table.agent_ids)))


def as_objects(items: Sequence[Hashable]) -> np.ndarray:
    """object [n]; tuples stay items."""
    return np.fromiter(items, object, len(items))


def _runs(sources: Sequence[Block | Source], numbers: np.ndarray) -> tuple[list[BlockRun | SourceRun], list[int]]:
    """(runs, in order; index of the first agent episode of each)."""
    source_S = numbers[:, SOURCE]
    is_block = np.array([isinstance(source, Block) for source in sources])
    goes_on = (source_S[1:] == source_S[:-1]) & is_block[source_S[1:]]
    firsts = [0, *(np.flatnonzero(~goes_on) + 1).tolist()]
    runs: list[BlockRun | SourceRun] = []
    for first, end in pairwise([*firsts, len(source_S)]):
        source = sources[source_S[first]]
        runs.append(BlockRun(source, numbers[first:end]) if isinstance(source, Block) else SourceRun(source))
    return runs, firsts


def _form(column: Any) -> list[tuple]:
    return [(path, str(leaf.dtype), leaf.shape[1:]) for path, leaf in flatten_struct(column)]


def _text(form: list[tuple]) -> str:
    return ", ".join(f"{dtype} of shape {shape}{f' at {path}' if path else ''}" for path, dtype, shape in form)

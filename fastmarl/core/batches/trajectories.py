"""Steps of many trajectories as one long column, read straight from the blocks they lie in.

Axes in names: S trajectory (an agent episode), N step. A *step* is a transition: an observation, the agent's
action on it, and its reward.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fastmarl.core.batches.agent_episode_table import DONE, END_ENV_T, FINAL, LOOKBACK, AgentEpisodeTable
from fastmarl.core.batches.runs import runs_of
from fastmarl.core.columns import Columns, Recorded, recorded_name
from fastmarl.core.episodes.lazy import in_numbers
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import blank_like
from fastmarl.core.errors import BatchError
from fastmarl.core.native import _steps, _store
from fastmarl.core.native._garbage import without_collection
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.core.store.lanes import TERMINATED, TRUNCATED

RECORDED = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
FLAGS = {Columns.TERMINATEDS: TERMINATED, Columns.TRUNCATEDS: TRUNCATED}
STATES = (Columns.STATE_IN, Recorded.STATE_IN, Columns.STATE_OUT)
NOT_OUTPUTS = frozenset((
    Columns.OBS, Columns.NEXT_OBS, Columns.FINAL_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS,
    Columns.TRUNCATEDS, Columns.SEQ_LENS, Columns.LOSS_MASK, Columns.EPS_ID, Columns.AGENT_ID, Columns.ACTIVE,
    Columns.ENV_STATE, Columns.FINAL_T, Columns.FIRST_ENV_T,
))  # fmt: skip
"""Names of columns of batches that a module's output may have, too; there they mean what they always mean."""


FlatStruct = list[tuple[tuple, Any]]  # see flatten_struct()
Item = TypeVar("Item")


class Places(NamedTuple):
    """Of some steps."""

    rows: np.ndarray  # int64 [n], where they are in their run
    counts: np.ndarray  # int64 [runs], how many are in each


class Trajectories:
    """Agent episodes, one after the other; their lookbacks are steps like the others.

    Args:
        table: of agent episodes.
        chosen: int64 [s], which of them, each with a step or more; those of one block should be adjacent.

    Attributes:
        begin_S: int64, position of each trajectory's first step, the lookback's.
        lookback_S, length_S: int64, steps in the lookback and after it.
        numbers: int64 [s, 10], see `AgentEpisodeTable`.
    """

    def __init__(self, table: AgentEpisodeTable, chosen: np.ndarray):
        self._table, self._chosen = table, chosen
        self.numbers = numbers = _take(table.numbers, chosen)
        self._runs, self._first_of_run = runs_of(table.sources, numbers)
        self._end_of_run = np.cumsum([len(run.rows) for run in self._runs])
        self._row_N = _steps.joined([run.rows for run in self._runs])
        self._final_S, self._end_env_t_S, self._done_S = numbers[:, FINAL], numbers[:, END_ENV_T], numbers[:, DONE]
        self._have_all_ended = min(self._final_S.tolist()) >= 0
        self.lookback_S, self.length_S = numbers[:, LOOKBACK], _steps.lengths(numbers)
        self.begin_S = _steps.begins(self.lookback_S, self.length_S)

    @property
    def is_one_run(self) -> bool:
        """Whether all lie in one block, or there is one trajectory only."""
        return len(self._runs) == 1

    @property
    def ended_S(self) -> dict[str, np.ndarray]:
        """ "terminateds" and "truncateds", bool."""
        return {name: self._done_S & flag > 0 for name, flag in FLAGS.items()}

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
        return _steps.ranges(self.first_S, self.length_S)

    def end_flags(self) -> dict[str, np.ndarray]:
        """ "terminateds" and "truncateds", bool [N], of the steps after the lookbacks: True at the last ones."""
        return {name: _steps.end_flags(self._done_S, self.length_S, flag) for name, flag in FLAGS.items()}

    @cached_property
    def agent_ids(self) -> list[Hashable]:
        return self._of_chosen(self._table.agent_ids)

    @cached_property
    def episode_ids(self) -> list[str | None]:
        """Of the chunks."""
        return self._of_chosen(self._table.episode_ids)

    def _of_chosen(self, items: list[Item]) -> list[Item]:
        return list(map(items.__getitem__, self._chosen.tolist()))

    def ids(self) -> dict[str, np.ndarray]:
        """ "eps_id" and "agent_id", object [S]."""
        own_ids = self._of_chosen(self._table.own_ids)
        ids = [
            f"{episode_id}_{agent_id}" if own_id is None else own_id
            for agent_id, episode_id, own_id in zip(self.agent_ids, self.episode_ids, own_ids, strict=True)
        ]
        return {Columns.EPS_ID: as_objects(ids), Columns.AGENT_ID: as_objects(self.agent_ids)}

    def output_keys(self) -> list[str]:
        """Names of the recorded outputs, of those that any trajectory has."""
        return list(dict.fromkeys(key for run in self._runs for key in run.output_keys()))

    def wanted_outputs(self, outputs: Collection[str] | None) -> list[Any]:
        """These; None: those of all trajectories, but no recurrent states, and none with the name of another column.
        Action masks that any trajectory has are always among them, unless they have different sizes; in trajectories
        without such, nothing is ruled out.

        Raises:
            BatchError: one of them was not recorded, or has the name of another column.
        """
        recorded = self.output_keys()
        if outputs is None:
            of_all = set.intersection(*(set(run.output_keys()) for run in self._runs))
            wanted = [key for key in recorded if key in of_all and key not in STATES and key not in NOT_OUTPUTS]
            return self._with_masks(wanted)
        if taken := [key for key in outputs if key in NOT_OUTPUTS]:
            raise BatchError(f"output {taken[0]!r} has the name of another column of batches; read it with "
                             f"get_extra_model_outputs(), or give the module's output another name")  # fmt: skip
        lacking = [key for key in outputs if key not in recorded]
        if lacking:
            raise BatchError(f"expected outputs among the recorded {recorded}, got {lacking[0]!r}")
        return self._with_masks(outputs)

    def _with_masks(self, outputs: Iterable[Any]) -> list[Any]:
        """These, and the recorded action masks: what rates an action needs the mask under which it was chosen."""
        wanted, name = list(outputs), recorded_name(Recorded.ACTION_MASK, self.output_keys())
        forms = [_form(flatten_struct(run.output(name))) for run in self._runs if name in run.output_keys()]
        is_one_column = bool(forms) and all(form == forms[0] for form in forms)  # not so in groups of several modules
        return [*wanted, name] if is_one_column and name not in wanted else wanted

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
        places = self._places(steps)
        return {name: self._read(name, places) for name in names}

    def _read(self, name: str, places: Places) -> Any:
        if name == Columns.OBS:
            return self._gathered(name, [run.observations() for run in self._runs], places)
        if name == Columns.ACTIONS:
            return self._gathered(name, [run.actions() for run in self._runs], places)
        if name == Columns.REWARDS:
            return self._rewards(places)
        columns = [run.output(name) if name in run.output_keys() else None for run in self._runs]
        if any(column is None for column in columns):
            blank = blank_like(next(column for column in columns if column is not None), 1, name)
            n = int(self._row_N.max()) + 1  # whichever rows a run asks for, in a block of any size
            blank = map_struct(lambda leaf: np.broadcast_to(leaf, (n, *leaf.shape[1:])), blank)
            columns = [blank if column is None else column for column in columns]
        return self._gathered(name, columns, places)

    def _rewards(self, places: Places) -> np.ndarray:
        rewards: np.ndarray = self._gathered(Columns.REWARDS, [run.paid() for run in self._runs], places)
        pieces = np.split(rewards, np.cumsum(places.counts)[:-1])
        for run, piece in zip(self._runs, pieces, strict=True):
            recorded = run.recorded_rewards(piece)
            if recorded is not piece:
                piece[...] = recorded
        return rewards

    def read_outputs(self, names: Iterable[Any], steps: np.ndarray) -> dict[Any, Any]:
        """Outputs that all trajectories have, of any name, also that of another column; see read()."""
        places = self._places(steps)
        return {name: self._gathered(name, [run.output(name) for run in self._runs], places) for name in names}

    def env_ts(self, steps: np.ndarray) -> np.ndarray:
        """int64 [n]: the env step at which each observation arrived; `steps` as in read()."""
        return self._env_ts(self._places(steps))

    def _env_ts(self, places: Places) -> np.ndarray:
        columns = [run.env_ts() for run in self._runs]
        if len({column.dtype for column in columns}) > 1:
            columns = [column.astype(np.int64) for column in columns]
        return self._gather(columns, places).astype(np.int64, copy=False)

    def _places(self, steps: np.ndarray) -> Places:
        rows = _take(self._row_N, steps)
        if self.is_one_run:
            return Places(rows, np.array([len(steps)]))
        # A run's steps are adjacent, though not ascending: enough for a search of where they end.
        return Places(rows, np.diff(np.searchsorted(steps, self._end_of_run), prepend=0))

    def _gathered(self, name: str, columns: list[Any], places: Places) -> Any:
        """Of each run's whole column, the items at these places."""
        of_run = list(map(flatten_struct, columns))
        if not self.is_one_run:
            self._check_forms(name, of_run)
        leaves = zip(*([leaf for _, leaf in flat] for flat in of_run), strict=True)
        return map_struct(lambda _: self._gather(list(next(leaves)), places), columns[0])

    def _gather(self, columns: list[np.ndarray], places: Places) -> np.ndarray:
        """Of each run's column, the rows at these places, copied."""
        if columns[0].dtype.hasobject:
            pieces = np.split(places.rows, np.cumsum(places.counts)[:-1])
            return np.concatenate([column.take(piece, 0) for column, piece in zip(columns, pieces, strict=True)])
        return _store.gather(columns, places.rows, places.counts)

    def final_obs(self) -> Any:
        """The observation after each trajectory's last step, [S, ...], copied.

        Raises:
            BatchError: see read().
        """
        if self._have_all_ended:
            return self._finals(self._final_S, self._n_of_run)
        last = self._gathered(Columns.OBS, [run.observations() for run in self._runs], self._last_places())
        has_ended = self._final_S >= 0
        if has_ended.any():
            counts = np.add.reduceat(has_ended.astype(np.int64), self._first_of_run)
            finals = self._finals(self._final_S[has_ended], counts)
            for (_, leaf), (_, final) in zip(flatten_struct(last), flatten_struct(finals), strict=True):
                leaf[has_ended] = final
        return last

    def _finals(self, rows: np.ndarray, counts: np.ndarray) -> Any:
        """Final observations, so many of each run."""
        places = Places(np.ascontiguousarray(rows), counts)
        return self._gathered(Columns.OBS, [run.final_observations() for run in self._runs], places)

    def final_env_t(self) -> np.ndarray:
        """int64 [S]: env step of the observation after each trajectory's last step."""
        if self._have_all_ended:
            return self._end_env_t_S
        return np.where(self._final_S >= 0, self._end_env_t_S, self._env_ts(self._last_places()))

    def _last_places(self) -> Places:
        """Of the trajectories' last observations, unless they have final ones."""
        return Places(np.concatenate([run.last_row_S for run in self._runs]), self._n_of_run)

    @property
    def _n_of_run(self) -> np.ndarray:
        """int64: how many trajectories each run has."""
        return np.diff([*self._first_of_run, len(self._chosen)])

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

    def _check_forms(self, name: str, of_run: list[FlatStruct]) -> None:
        """Raises BatchError unless the runs' columns have the same dtypes, shapes and structures."""
        expected = _form(of_run[0])
        for flat, first in zip(of_run, self._first_of_run, strict=True):
            if (form := _form(flat)) != expected:
                agents = self.agent_ids[0], self.agent_ids[first]
                raise BatchError(f"{name!r} of agent {agents[1]!r} is {_text(form)}, but that of agent {agents[0]!r} "
                                 f"is {_text(expected)}; they can't be in one column, so keep these agents in modules "
                                 f"or groups of their own")  # fmt: skip


def by_module(episodes: Iterable[MultiAgentEpisode]) -> dict[str, Trajectories]:
    """Module id -> trajectories of its agents: episodes in order, in each the agents in order of appearance."""
    table = without_collection(AgentEpisodeTable, in_numbers(episodes))
    return {module_id: Trajectories(table, chosen) for module_id, chosen in table.by_module().items()}


def names_of(outputs: Iterable[str] | None) -> list[str] | None:
    """As a list, which each module may go through.

    Raises:
        BatchError: they are one text.
    """
    if isinstance(outputs, str):
        raise BatchError(f"expected names of outputs, such as [{outputs!r}], got the text {outputs!r}")
    return None if outputs is None else list(outputs)


def trajectories_of(agent_episodes: Iterable[SingleAgentEpisode]) -> Trajectories:
    """These, each with a step or more; those of one block should be adjacent."""
    table = AgentEpisodeTable.of(agent_episodes)
    return Trajectories(table, np.arange(len(table.agent_ids)))


def as_objects(items: Sequence[Hashable]) -> np.ndarray:
    """object [n]; tuples stay items."""
    return np.fromiter(items, object, len(items))


def _take(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """column.take(rows, 0), but the interpreter's lock is kept; see _steps."""
    return _store.gather([column], rows, np.array([len(rows)]))


def _form(flat: FlatStruct) -> list[tuple]:
    return [(path, leaf.dtype, leaf.shape[1:]) for path, leaf in flat]


def _text(form: list[tuple]) -> str:
    return ", ".join(f"{dtype} of shape {shape}{f' at {path}' if path else ''}" for path, dtype, shape in form)

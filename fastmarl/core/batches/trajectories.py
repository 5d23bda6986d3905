"""Reads the steps of many trajectories as one long column, directly from the blocks that contain them.

Axes in names: S trajectory (an agent episode), N step. A *step* is a transition: an observation, the action of the
agent, and its reward.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fastmarl.core.batches.agent_episode_table import DONE, END_ENV_T, FINAL, LOOKBACK, AgentEpisodeTable
from fastmarl.core.batches.runs import runs_of
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import blank_like
from fastmarl.core.episodes.unbuilt import in_numbers
from fastmarl.core.errors import BatchError
from fastmarl.core.native import _steps, _store
from fastmarl.core.native._garbage import without_collection
from fastmarl.core.spaces.columns import Columns, Recorded, recorded_name
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.core.store.lanes import TERMINATED, TRUNCATED

RECORDED = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
FLAGS = {Columns.TERMINATEDS: TERMINATED, Columns.TRUNCATEDS: TRUNCATED}
STATES = (Columns.STATE_IN, Recorded.STATE_IN, Columns.STATE_OUT)
NOT_OUTPUTS = frozenset((
    Columns.OBS, Columns.NEXT_OBS, Columns.FINAL_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS,
    Columns.TRUNCATEDS, Columns.SEQ_LENS, Columns.LOSS_MASK, Columns.EPS_ID, Columns.AGENT_ID, Columns.ACTIVE,
    Columns.ENV_STATE, Columns.FINAL_T, Columns.NEXT_T, Columns.CONTINUES, Columns.FINAL_ACTION_MASK,
    Columns.FIRST_ENV_T, Columns.IS_DONE, Columns.RESPAWNED, Columns.RESPAWN_OBS, Columns.RESPAWN_ACTION_MASK,
))  # fmt: skip
"""Names of batch columns that are never outputs, even if a module output has the same name."""


FlatStruct = list[tuple[tuple, Any]]  # see flatten_struct()
Item = TypeVar("Item")


class Places(NamedTuple):
    """Locations of steps in the runs."""

    rows: np.ndarray  # int64 [n], row of each step in its run
    counts: np.ndarray  # int64 [runs], number of steps in each run


class Trajectories:
    """Concatenated agent episodes, including their lookbacks.

    Args:
        table: The table to select from.
        chosen: Indices of the agent episodes in the table, int64 [s]. Each must have at least one step, unless only
            last observations are read. Agent episodes in the same block should be adjacent.

    Attributes:
        begin_S: Position of the first step of each trajectory, including the lookback, int64.
        lookback_S, length_S: Number of steps in the lookback and after it, int64.
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
        """True if all trajectories are in the same block, or if there is only one."""
        return len(self._runs) == 1

    @property
    def ended_S(self) -> dict[str, np.ndarray]:
        """Flags "terminateds" and "truncateds" of each trajectory, bool [S]."""
        return {name: self._done_S & flag > 0 for name, flag in FLAGS.items()}

    @property
    def first_S(self) -> np.ndarray:
        """Position of the first step of each trajectory after the lookback, int64."""
        return self.begin_S + self.lookback_S

    @property
    def last_S(self) -> np.ndarray:
        """Position of the last step of each trajectory, int64."""
        return self.first_S + self.length_S - 1

    def steps_after_lookback(self) -> np.ndarray:
        """Return the positions of all steps except lookback steps, int64 [N]."""
        return _steps.ranges(self.first_S, self.length_S)

    def end_flags(self) -> dict[str, np.ndarray]:
        """Return "terminateds" and "truncateds" of the steps after lookbacks, bool [N], True only at last steps."""
        return {name: _steps.end_flags(self._done_S, self.length_S, flag) for name, flag in FLAGS.items()}

    @cached_property
    def agent_ids(self) -> list[Hashable]:
        return self._of_chosen(self._table.agent_ids)

    @cached_property
    def episode_ids(self) -> list[str | None]:
        """Id of the multi-agent episode of each trajectory."""
        return self._of_chosen(self._table.episode_ids)

    def _of_chosen(self, items: list[Item]) -> list[Item]:
        return list(map(items.__getitem__, self._chosen.tolist()))

    def ids(self) -> dict[str, np.ndarray]:
        """Return "eps_id" and "agent_id" as object arrays [S]."""
        own_ids = self._of_chosen(self._table.own_ids)
        ids = [
            f"{episode_id}_{agent_id}" if own_id is None else own_id
            for agent_id, episode_id, own_id in zip(self.agent_ids, self.episode_ids, own_ids, strict=True)
        ]
        return {Columns.EPS_ID: as_objects(ids), Columns.AGENT_ID: as_objects(self.agent_ids)}

    def output_keys(self) -> list[str]:
        """Return the names of all outputs that at least one trajectory has."""
        return list(dict.fromkeys(key for run in self._runs for key in run.output_keys()))

    def wanted_outputs(self, outputs: Collection[str] | None) -> list[Any]:
        """Return the names of the outputs to read.

        If `outputs` is None, these are the outputs common to all trajectories, except recurrent states and names of
        other columns. Recorded action masks are always included, unless their sizes differ; trajectories without masks
        get masks that allow all actions.

        Raises:
            BatchError: If an output was not recorded, or has the same name as another column.
        """
        recorded = self.output_keys()
        if outputs is None:
            of_all = set.intersection(*(set(run.output_keys()) for run in self._runs))
            wanted = [key for key in recorded if key in of_all and key not in STATES and key not in NOT_OUTPUTS]
            return self._with_masks(wanted)
        if taken := [key for key in outputs if key in NOT_OUTPUTS]:
            raise BatchError(f"output {taken[0]!r} has the same name as another batch column; read it with "
                             f"get_extra_model_outputs(), or rename the module output")  # fmt: skip
        lacking = [key for key in outputs if key not in recorded]
        if lacking:
            is_value = Columns.VF_PREDS in lacking
            hint = "; to train with values, return them from the module's forward methods" if is_value else ""
            raise BatchError(f"outputs must be among the recorded {recorded}, got {lacking[0]!r}{hint}")
        return self._with_masks(outputs)

    def _with_masks(self, outputs: Iterable[Any]) -> list[Any]:
        """Add the recorded action masks, since evaluating an action requires the mask under which it was chosen."""
        wanted, name = list(outputs), recorded_name(Recorded.ACTION_MASK, self.output_keys())
        forms = [_form(flatten_struct(run.output(name))) for run in self._runs if name in run.output_keys()]
        is_one_column = bool(forms) and all(form == forms[0] for form in forms)  # False if modules of a group differ
        return [*wanted, name] if is_one_column and name not in wanted else wanted

    def read(self, name: str, steps: np.ndarray) -> Any:
        """Return copies of the items of a column at these positions, blank where a trajectory has no such output.

        Args:
            name: One of RECORDED, or the name of a recorded output.
            steps: Positions, int64 [n]; unless `is_one_run`, they must be grouped by trajectory in ascending order.

        Raises:
            BatchError: If items of different trajectories differ in dtype, shape or structure.
        """
        return self.read_all([name], steps)[name]

    def read_all(self, names: Iterable[str], steps: np.ndarray) -> dict[str, Any]:
        """Read several columns at the same positions; see `read()`."""
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
            n = int(self._row_N.max()) + 1  # enough for any row of any block
            blank = map_struct(lambda leaf: np.broadcast_to(leaf, (n, *leaf.shape[1:])), blank)
            columns = [blank if column is None else column for column in columns]
        return self._gathered(name, columns, places)

    def _rewards(self, places: Places) -> np.ndarray:
        rewards: np.ndarray = self._gathered(Columns.REWARDS, [run.raw_rewards() for run in self._runs], places)
        pieces = np.split(rewards, np.cumsum(places.counts)[:-1])
        for run, piece in zip(self._runs, pieces, strict=True):
            recorded = run.recorded_rewards(piece)
            if recorded is not piece:
                piece[...] = recorded
        return rewards

    def read_outputs(self, names: Iterable[Any], steps: np.ndarray) -> dict[Any, Any]:
        """Read module outputs that all trajectories have, even if another column has the same name; see `read()`."""
        places = self._places(steps)
        return {name: self._gathered(name, [run.output(name) for run in self._runs], places) for name in names}

    def env_ts(self, steps: np.ndarray) -> np.ndarray:
        """Return the env step at which each observation arrived, int64 [n]; for `steps`, see `read()`."""
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
        # The steps of a run are adjacent but not always ascending; that suffices to find its end by binary search.
        return Places(rows, np.diff(np.searchsorted(steps, self._end_of_run), prepend=0))

    def _gathered(self, name: str, columns: list[Any], places: Places) -> Any:
        """Gather the items at these places from the complete columns of the runs."""
        of_run = list(map(flatten_struct, columns))
        if not self.is_one_run:
            self._check_forms(name, of_run)
        leaves = zip(*([leaf for _, leaf in flat] for flat in of_run), strict=True)
        return map_struct(lambda _: self._gather(list(next(leaves)), places), columns[0])

    def _gather(self, columns: list[np.ndarray], places: Places) -> np.ndarray:
        """Copy the rows at these places from the columns of the runs."""
        if columns[0].dtype.hasobject:
            pieces = np.split(places.rows, np.cumsum(places.counts)[:-1])
            return np.concatenate([column.take(piece, 0) for column, piece in zip(columns, pieces, strict=True)])
        return _store.gather(columns, places.rows, places.counts)

    def final_obs(self) -> Any:
        """Return copies of the observations after the last step of each trajectory, [S, ...].

        Raises:
            BatchError: As in `read()`.
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
        """Gather final observations; `counts` is their number in each run."""
        places = Places(np.ascontiguousarray(rows), counts)
        return self._gathered(Columns.OBS, [run.final_observations() for run in self._runs], places)

    def final_env_t(self) -> np.ndarray:
        """Return the env step at which the observation after each trajectory's last step arrived, int64 [S]."""
        if self._have_all_ended:
            return self._end_env_t_S
        return np.where(self._final_S >= 0, self._end_env_t_S, self._env_ts(self._last_places()))

    def _last_places(self) -> Places:
        """Return the places of the last observations, valid only for trajectories without a final observation."""
        return Places(np.concatenate([run.last_row_S for run in self._runs]), self._n_of_run)

    @property
    def _n_of_run(self) -> np.ndarray:
        """Number of trajectories in each run, int64."""
        return np.diff([*self._first_of_run, len(self._chosen)])

    def obs_after(self, steps: np.ndarray) -> Any:
        """Return copies of the observations after these steps: the one at the next step, or the final one.

        Args:
            steps: Positions, int64 [n], ascending; must include the last step of each trajectory.
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
        """Raise BatchError unless the columns of all runs have equal dtypes, shapes and structures."""
        expected = _form(of_run[0])
        for flat, first in zip(of_run, self._first_of_run, strict=True):
            if (form := _form(flat)) != expected:
                agents = self.agent_ids[0], self.agent_ids[first]
                raise BatchError(f"{name!r} of agent {agents[1]!r} is {_text(form)}, but that of agent {agents[0]!r} "
                                 f"is {_text(expected)}; they cannot share a column, so put these agents in separate "
                                 f"modules or groups")  # fmt: skip


def by_module(episodes: Iterable[MultiAgentEpisode]) -> dict[str, Trajectories]:
    """Return module id -> trajectories of its agents, ordered by episode and by first appearance."""
    table = without_collection(AgentEpisodeTable, in_numbers(episodes))
    return {module_id: Trajectories(table, chosen) for module_id, chosen in table.by_module().items()}


def names_of(outputs: Iterable[str] | None) -> list[str] | None:
    """Return the names as a list, since they are iterated over once per module.

    Raises:
        BatchError: If `outputs` is a single string.
    """
    if isinstance(outputs, str):
        raise BatchError(f"outputs must be a list of names, such as [{outputs!r}], got the string {outputs!r}")
    return None if outputs is None else list(outputs)


def trajectories_of(agent_episodes: Iterable[SingleAgentEpisode]) -> Trajectories:
    """Build trajectories from agent episodes with steps; agent episodes in the same block should be adjacent."""
    table = AgentEpisodeTable.of(agent_episodes)
    return Trajectories(table, np.arange(len(table.agent_ids)))


def as_objects(items: Sequence[Hashable]) -> np.ndarray:
    """Return an object array [n], in which tuples remain single items."""
    return np.fromiter(items, object, len(items))


def _take(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return column.take(rows, 0), but without releasing the interpreter lock; see `_steps`."""
    return _store.gather([column], rows, np.array([len(rows)]))


def _form(flat: FlatStruct) -> list[tuple]:
    return [(path, leaf.dtype, leaf.shape[1:]) for path, leaf in flat]


def _text(form: list[tuple]) -> str:
    return ", ".join(f"{dtype} of shape {shape}{f' at {path}' if path else ''}" for path, dtype, shape in form)

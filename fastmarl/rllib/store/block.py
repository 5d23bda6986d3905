"""Rows of a module with the data needed for RLlib episodes: reward types, and observations of any dtype."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fastmarl.core.native import _store
from fastmarl.core.native._env_values import kept
from fastmarl.core.native._leaf_rows import UnfitValueError
from fastmarl.core.native._rllib_scatter import ExactLeafRows, RewardKinds
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.store.block import Block, Key, name_of
from fastmarl.core.store.memory import MemoryRing
from fastmarl.rllib.store.layout import WHOLE, ObservationLayout

Outputs = dict[Key, Any]  # outputs of a single row


class RLlibBlock(Block):
    """Rows of a single module.

    With a `raw_layout`, the observations written by envs (`raw_obs`) differ from the stored ones; see record_newest().

    Attributes:
        former: Outputs of the first `len(former)` rows, one dict per row, if their columns differ from later rows
            (because of another sampling mode or a connector); `outputs` has the outputs of later rows.
        completed: Row -> outputs for take() to copy instead of the outputs with which the row acted.
    """

    layout: ObservationLayout  # type: ignore[assignment]
    raw_layout: ObservationLayout | None  # type: ignore[assignment]
    former: list[Outputs]
    completed: dict[int, Outputs]

    def __init__(
        self,
        layout: ObservationLayout,
        ring: MemoryRing,
        rows: Any,
        on_change: Callable[["RLlibBlock"], None],
        raw_layout: ObservationLayout | None = None,
        **room: int,
    ):
        self.others: dict[int, tuple[Any, int]] = {}
        self.former = []
        self.completed = {}
        self.seq_no = 0  # sequence number of the current weights
        self.unstamped_from = 0  # first row on which the current weights act
        self.boxes_scalars = False  # True if the next outputs have arrays of shape () instead of scalars
        self._boxed = False  # True if `outputs` have such arrays
        self._has_record = False  # True if observations have been stored
        self._on_change = on_change
        super().__init__(layout, ring, rows, raw_layout, **room)  # type: ignore[arg-type]

    kind_R: np.ndarray

    def _bind(self, capacity: int) -> None:
        written = self.rows.n
        kinds = np.zeros(capacity, np.uint8)
        if written:
            kinds[:written] = self.kind_R[:written]
        self.kind_R = kinds
        self.kinds = RewardKinds(kinds, self.others)
        self._on_change(self)  # first, because rewards are added to both arrays, and `rows` bounds the number of rows
        super()._bind(capacity)

    @property
    def env_layout(self) -> ObservationLayout:
        """Layout of the observations sent by envs."""
        return self.layout if self.raw_layout is None else self.raw_layout

    def _leaf_rows(self, arrays: list[np.ndarray]) -> list:
        take = partial(
            self._take_as_object, "raw_final_obs" if arrays is getattr(self, "raw_final_obs", None) else "raw_obs"
        )
        return [
            ExactLeafRows(array, leaf.path, leaf.sizes, take)
            for array, leaf in zip(arrays, self.env_layout.leaves, strict=True)
        ]

    def _take_as_object(self, name: str, row: int, value: Any) -> None:
        """Store an observation of another dtype or shape, switching to storing each observation as an object."""
        if value is None:
            raise UnfitValueError("expected an observation, got None; omit agents that are not observed")
        if not self.env_layout.has_objects:
            rows = _one_by_one(self.env_layout, self.raw_obs, self.rows.n)
            finals = _one_by_one(self.env_layout, self.raw_final_obs, self.rows.n_finals)
            self.lay_out(WHOLE)
            for array, values in ((self.raw_obs[0], rows), (self.raw_final_obs[0], finals)):
                for i, each in enumerate(values):
                    array[i] = each
        getattr(self, name)[0][row] = kept(value)

    def overwrite(self, row: int, observation: Any) -> None:
        """Overwrite the observation of a row: the stored one if the connectors have run, else the raw one."""
        if self.raw_layout is not None and row < self.n_connected:
            layout = ObservationLayout.of(observation)
            self.record_newest(np.array([row]), NONE, layout, layout.columns([observation]))
            return
        self._overwrite_raw("raw_obs", row, observation)

    def overwrite_final(self, final: int, observation: Any) -> None:
        """Overwrite a final observation as sent by the env."""
        self._overwrite_raw("raw_final_obs", final, observation)

    def _overwrite_raw(self, name: str, place: int, observation: Any) -> None:
        for part, array in zip(self.env_layout.leaves_of(observation), getattr(self, name), strict=True):
            if not self.env_layout.has_objects and (np.asarray(part).dtype, np.shape(part)) != (
                array.dtype,
                array.shape[1:],
            ):
                self._take_as_object(name, place, observation)
                return
            array[place] = part

    def lay_out(self, layout: ObservationLayout) -> None:
        """Reallocate memory for another layout of env observations; existing observations are lost."""
        if self.raw_layout is None:
            self.layout = layout
        else:
            self.raw_layout = layout
        self._bind(self.rows.capacity)
        self._bind_finals(self.rows.final_capacity)

    def record_newest(
        self, rows: np.ndarray, finals: np.ndarray, layout: ObservationLayout, leaves: list[np.ndarray]
    ) -> None:
        """Store connector results for new rows and final observations.

        Args:
            rows, finals: int64, indices of the rows and of the final observations.
            layout, leaves: The observations, [len(rows) + len(finals), ...] each.
        """
        if not layout.same(self.layout):
            if not self._has_record:
                self._record_as(layout)
            elif not self.layout.has_objects:
                self._record_as_objects()
        self._has_record = True
        if self.layout.has_objects and not layout.has_objects:
            leaves = self.layout.columns(layout.items(layout.nest(leaves)))
        for array, final_array, leaf in zip(self.obs, self.final_obs, leaves, strict=True):
            array[rows] = leaf[: len(rows)]
            if len(finals):
                final_array[finals] = leaf[len(rows) :]

    def raw_newest(self, row: int, final: int) -> Any:
        """Return a copy of the latest observation of a lane as sent by the env.

        Args:
            row: Index of the latest row of the lane.
            final: Index of its final observation, or -1.
        """
        leaves, place = (self.raw_obs, row) if final < 0 else (self.raw_final_obs, final)
        parts = [leaf[place : place + 1].copy() for leaf in leaves]
        return self.env_layout.items(parts[0] if self.env_layout.has_objects else self.env_layout.nest(parts))[0]

    def awaits_connectors(self, row: int, final: int) -> bool:
        """Return True if the connectors have yet to run on the latest observation of a lane; see raw_newest()."""
        if self.raw_layout is None:
            return False
        return row >= self.n_connected if final < 0 else final >= self.n_finals_connected

    def _record_as(self, layout: ObservationLayout) -> None:
        """Allocate memory for stored observations of this layout, before any have been stored."""
        self.layout = layout
        self._on_change(self)
        self.obs = self._leaves("obs", layout, self.rows.capacity, 0)  # type: ignore[arg-type]
        self.final_obs = self._leaves("final", layout, self.rows.final_capacity, 0)  # type: ignore[arg-type]

    def _record_as_objects(self) -> None:
        """Switch to storing each observation as an object, because the layout has changed."""
        layout, n_recorded = self.layout, (self.n_connected, self.n_finals_connected)
        former = [
            layout.items(layout.nest([leaf[:n] for leaf in leaves]))
            for leaves, n in zip((self.obs, self.final_obs), n_recorded, strict=True)
        ]
        self._record_as(WHOLE)
        for (array,), n, values in zip((self.obs, self.final_obs), n_recorded, former, strict=True):
            array[:n] = WHOLE.columns(values)[0]

    def record(self, first: int, n: int, outputs: dict[Key, np.ndarray]) -> None:
        """Store the module outputs for the rows [first, first + n)."""
        if _store.write_rows(self.outputs, outputs, first, n):
            return
        if self.outputs and not self._same_columns(outputs):
            self._end_columns(first)
        if not self.outputs:
            self._boxed = self.boxes_scalars
        for key, values in outputs.items():
            column = self.outputs.get(key)
            if column is None:
                column = self.outputs[key] = self._output_array(key, values, values.dtype)
            column[first : first + n] = values

    def record_items(self, first: int, items: list[Outputs]) -> None:
        """Store outputs row by row from row `first` on, because they cannot be stacked into columns."""
        self._end_columns(first)
        for row in items:
            if any(name_of(key) != Columns.ACTIONS for key in row):
                row[Columns.WEIGHTS_SEQ_NO] = self.seq_no
        self.former += items

    def is_by_items(self, first: int) -> bool:
        """Return True if outputs before `first` are stored row by row, so the next ones should be too."""
        return first > 0 and len(self.former) >= first and not self.outputs

    def _end_columns(self, first: int) -> None:
        """Move the outputs of the rows before `first` to `former`, and start new columns."""
        self.seq_no_R[self.unstamped_from : first] = self.seq_no
        self.former += [self.acted_with(row) for row in range(len(self.former), first)]
        self.outputs = {}

    def _same_columns(self, outputs: dict[Key, np.ndarray]) -> bool:
        return self.outputs.keys() == outputs.keys() and all(
            column.dtype == outputs[key].dtype and column.shape[1:] == outputs[key].shape[1:]
            for key, column in self.outputs.items()
        )

    @property
    def has_states(self) -> bool:
        """True if the outputs contain recurrent states."""
        return any(map(is_state, self.outputs))

    def type_of_scalars(self, name: str) -> type:
        """Return the type of numbers in output rows: int, a NumPy scalar, or an array of shape ()."""
        if name == Columns.WEIGHTS_SEQ_NO:
            return int
        return np.ndarray if self._boxed and name != Columns.STATE_OUT else np.generic

    def acted_with(self, row: int) -> Outputs:
        """Return the module outputs for a row, leaf by leaf, with the sequence number of the weights."""
        if row < len(self.former):
            return self.former[row]
        values = {key: _item(column, row, self._boxed and not is_state(key)) for key, column in self.outputs.items()}
        if any(name_of(key) != Columns.ACTIONS for key in values):  # RLlib stores this only alongside other outputs
            values[Columns.WEIGHTS_SEQ_NO] = int(self.seq_no_R[row])
        return values

    def take(self, source: Block, rows: np.ndarray) -> None:
        """Initialize the block with copies of `rows` (int64, ascending) from the previous block of the module."""
        assert isinstance(source, RLlibBlock)
        n = len(rows)
        has_former = bool(source.completed) or (n > 0 and int(rows[0]) < len(source.former))
        if has_former:
            self.former = [source.completed.get(row) or source.acted_with(row) for row in rows.tolist()]
        self._boxed = source._boxed
        self._has_record = n > 0
        super().take(source, rows)
        if has_former:
            self.outputs = {}
        # RLlib adds the rewards in a lookback to a Python 0.0, which turns ints into floats.
        kinds = source.kind_R[rows]
        self.kind_R[:n] = np.where(kinds >= INT, PYTHON_FLOAT, kinds)
        for row in np.flatnonzero(kinds == OTHER).tolist():
            value, n_added = source.others[int(rows[row])]
            self.others[row] = (0.0 + value, n_added)

    def forget_waiting(self, acting_from: int) -> None:
        """Drop the outputs of rows from `acting_from` onward, whose agents have not acted yet."""
        del self.former[acting_from:]


NONE = np.zeros(0, np.int64)
PYTHON_FLOAT, OTHER, INT = 1, 3, 16  # kinds of rewards, see _rllib_scatter


def _item(column: np.ndarray, row: int, boxed: bool = False) -> Any:
    item = column[row]
    return np.array(item) if boxed or isinstance(item, np.ndarray) else item


def is_state(key: Key) -> bool:
    """Return True if an output is (part of) a recurrent state."""
    return name_of(key) == Columns.STATE_OUT


def _one_by_one(layout: ObservationLayout, arrays: list[np.ndarray], n: int) -> list:
    return [layout.nest([_item(array, i) for array in arrays]) for i in range(n)]

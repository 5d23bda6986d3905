"""Memory for the rows of a module in a `sample()` call, leased to the episodes built from it.

Axes in names: R row, F final observation, L lane, K flattened leaf. Rows are in order of arrival, so the rows that a
module acts on in a tick form a slice, and its outputs are recorded slice by slice.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from fastmarl.core.kernels.rows import as_bytes
from fastmarl.core.native import _store
from fastmarl.core.native._leaf_rows import LeafRows
from fastmarl.core.spaces.columns import Columns, OwnName, Recorded, blank_value, own_name
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.structs import flatten_struct, nested_struct
from fastmarl.core.store.memory import LeasedArray, MemoryRing

LEAST_ROWS = 64
SMALL = 512  # rows below which all memory counts as used
ENOUGH = 0.25  # fraction of block rows that episodes must use to keep the block
GROWTH = 4
ROW_ARRAYS = {
    "lane_R": np.int32,
    "prev_R": np.int64,
    "env_t_R": np.int32,
    "reward_R": np.float64,
    "seq_no_R": np.int64,
}
FINAL_ARRAYS = {"final_prev_F": np.int64, "final_at_F": np.int64}
# Name of an output; (name, *path) for leaves of nested outputs and for names that are not strings.
Key = str | tuple[Any, ...]
OWN, OUTPUT = range(2)  # kinds of arrays: the block's own, keyed by attribute name, and outputs, by output key
RESET_HINT = "if the change is intended, call sample(force_reset=True)"


class OutputFormError(ValueError):
    """Raised if an output does not match earlier outputs with the same key."""


class Block:
    """Rows of a module: observations and rewards of its agents, and its outputs.

    `rows` (a `_scatter.ModuleRows`) writes to the arrays of this block and counts its rows.

    Args:
        layout: Layout of the recorded observations.
        ring: Lends the memory.
        rows: Writes the data from the envs.
        raw_layout: Layout of the observations from envs, if connectors convert them to the recorded ones.
        rewards: Converts received rewards [n] to recorded rewards [n]; None to record them unchanged.
        n_rows, n_finals: Initial capacity for rows and final observations.

    Attributes:
        raw_obs, raw_final_obs: Leaves written by the envs; the same as `obs` and `final_obs` without a `raw_layout`.
        n_connected, n_finals_connected: Number of rows and final observations already processed by the connectors.
        is_open: True as long as rows may be added or changed.
        lease: Lease of the memory.
        readers: Weak references to objects that look up or store columns, each with a method `compact()`.
    """

    def __init__(
        self,
        layout: RowLayout,
        ring: MemoryRing,
        rows: Any,
        raw_layout: RowLayout | None = None,
        rewards: Callable[[np.ndarray], np.ndarray] | None = None,
        *,
        n_rows: int = LEAST_ROWS,
        n_finals: int = LEAST_ROWS,
    ):
        self.layout = layout
        self.raw_layout = raw_layout
        self._rewards = rewards
        self.n_connected = self.n_finals_connected = 0
        self.is_open = True
        self.rows = rows
        self._memory, self.lease = ring.lend(max(n_rows, LEAST_ROWS), max(n_finals, LEAST_ROWS))
        self._objects: dict[Any, np.ndarray] = {}  # object arrays, which cannot be leased through the array interface
        self.outputs: dict[Key, np.ndarray] = {}
        self.lookback_R = np.zeros(0, np.bool_)  # per carried row: True if its step was already complete
        self._row_bytes: list[list[np.ndarray]] | None = None
        self.readers: list[weakref.ref[Any]] = []
        rows.n = rows.n_finals = 0
        self._bind(self._memory.size)
        self._bind_finals(self._memory.final_size)

    @property
    def n_rows_held(self) -> int:
        """Number of rows and final observations held in memory: all ever written, but at least `SMALL`."""
        memory = self._memory
        touched = max(memory.n_touched, self.rows.n + self.rows.n_finals)
        n_held: int = min(memory.size + memory.final_size, max(touched, SMALL))
        return n_held

    def close(self) -> None:
        """Stop writing to this block; another block will use `rows`."""
        self.is_open = False
        self._memory.n_touched = max(self._memory.n_touched, self.rows.n + self.rows.n_finals)

    def reserve(self, n_rows: int, n_finals: int = 0) -> None:
        """Ensure capacity for this many rows and final observations in total; written rows are kept."""
        if n_rows > self.rows.capacity:
            self._memory.size = n_rows
            self._bind(n_rows)
        if n_finals > self.rows.final_capacity:
            self._memory.final_size = n_finals
            self._bind_finals(n_finals)

    def make_room(self, n_rows: int, n_finals: int = 0) -> None:
        """Ensure capacity for this many more rows and final observations, growing at least fourfold if necessary."""
        rows = self.rows
        if rows.n + n_rows > rows.capacity:
            self.reserve(max(rows.n + n_rows, GROWTH * rows.capacity))
        if rows.n_finals + n_finals > rows.final_capacity:
            self.reserve(0, max(rows.n_finals + n_finals, GROWTH * rows.final_capacity))

    def record(self, first: int, n: int, outputs: dict[Key, np.ndarray]) -> None:
        """Store module outputs for rows first:first + n, and NaN (or 0) for known outputs that are missing.

        Raises:
            OutputFormError: If an output has a different dtype, shape or structure than before.
        """
        if _store.write_rows(self.outputs, outputs, first, n):
            return
        before = list(self.outputs)
        for key, values in outputs.items():
            self._fitting_column(key, values, first, before)[first : first + n] = values
        for key, column in self.outputs.items():
            if key not in outputs:
                _blank(key, column[first : first + n])

    def row_bytes(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return `raw_obs` and `raw_final_obs`, which must not contain objects, as uint8 [capacity, bytes per row]."""
        if self._row_bytes is None:
            self._row_bytes = [[as_bytes(leaf) for leaf in leaves] for leaves in (self.raw_obs, self.raw_final_obs)]
        return self._row_bytes[0], self._row_bytes[1]

    def recorded_rewards(self, raw: np.ndarray) -> np.ndarray:
        """Convert received rewards to recorded rewards."""
        return raw if self._rewards is None else self._rewards(raw)

    @property
    def changes_rewards(self) -> bool:
        """True if a connector changes the recorded rewards."""
        return self._rewards is not None

    def reward(self, row: int) -> float:
        """Return the current recorded reward of a row."""
        return float(self.recorded_rewards(self.reward_R[row]))

    def take(self, source: "Block", rows: np.ndarray) -> None:
        """Copy `rows` (int64, ascending) of another block of the same module to the first rows, keeping their lanes."""
        n = len(rows)
        self.reserve(n)
        for name in ("lane_R", "env_t_R", "reward_R", "seq_no_R"):
            _take(getattr(source, name), rows, getattr(self, name))
        for old, new in zip(source.obs, self.obs, strict=True):
            _take(old, rows, new)
        if self.raw_layout is not None:
            for old, new in zip(source.raw_obs, self.raw_obs, strict=True):
                _take(old, rows, new)
        for key, old in source.outputs.items() if n else ():
            self.outputs[key] = self._output_array(key, old, old.dtype)
            _take(old, rows, self.outputs[key])
        self.rows.n = self.n_connected = n

    def output_keys(self) -> tuple[str, ...]:
        """Return the names of all recorded columns except actions."""
        names = dict.fromkeys(map(name_of, self.outputs))
        others = (name for name in names if name != Columns.ACTIONS)
        return (*others, own_name(Recorded.WEIGHTS_SEQ_NO, names))

    def output(self, name: OwnName) -> Any:
        """Return the complete column [capacity, ...] of an output, nested as the module returned it.

        Raises:
            KeyError: If the output does not exist.
        """
        if isinstance(name, str) and name in self.outputs:
            return self.outputs[name]
        leaves = {key[1:]: column for key, column in self.outputs.items() if isinstance(key, tuple) and key[0] == name}
        if not leaves:
            if name in (Columns.WEIGHTS_SEQ_NO, Recorded.WEIGHTS_SEQ_NO):
                return self.seq_no_R
            raise KeyError(name)
        return nested_struct(leaves)

    def _fitting_column(self, key: Key, values: np.ndarray, first: int, before: Collection[Key]) -> np.ndarray:
        """Return the column for these values, creating it if missing and widening its dtype if necessary.

        Args:
            key: Key of the output.
            values: Values of the output, [n, ...].
            first: Row of the first value.
            before: Keys of the columns that existed before this tick.

        Raises:
            OutputFormError: If the dtype, shape or structure of the output has changed.
        """
        column = self.outputs.get(key)
        if column is None:
            if parts := [other for other in before if name_of(other) == name_of(key)]:
                raise OutputFormError(f"expected output {name_of(key)!r} with the parts {parts}, as in earlier steps, "
                                      f"got {key!r}; keep its structure constant; {RESET_HINT}")  # fmt: skip
            column = self.outputs[key] = self._output_array(key, values, values.dtype)
            _blank(key, column[:first])
        elif (column.dtype, column.shape[1:]) != (values.dtype, values.shape[1:]):
            dtype = np.result_type(column, values)
            # The dtypes of random actions and module actions may differ in width.
            is_wider = name_of(key) == Columns.ACTIONS and dtype.kind in (column.dtype.kind, values.dtype.kind)
            if not is_wider or column.shape[1:] != values.shape[1:]:
                raise OutputFormError(f"expected output {key!r} to be {_form(column)}, as in earlier steps, got "
                                      f"{_form(values)}; keep dtype and shape constant; {RESET_HINT}")  # fmt: skip
            column = self.outputs[key] = self._output_array(key, values, dtype, first)
        return column

    def _bind(self, capacity: int) -> None:
        written, self._row_bytes = self.rows.n, None
        for name, dtype in ROW_ARRAYS.items():
            setattr(self, name, self._array((OWN, name), (capacity,), np.dtype(dtype), written))
        self.obs = self._leaves("obs", self.layout, capacity, written)
        self.raw_obs = self.obs
        if self.raw_layout is not None:
            self.raw_obs = self._leaves("raw", self.raw_layout, capacity, written)
        for key, column in self.outputs.items():
            self.outputs[key] = self._output_array(key, column, column.dtype, written)
        leaves = self._leaf_rows(self.raw_obs)
        self.rows.bind(leaves, self.lane_R, self.prev_R, self.env_t_R, self.reward_R)

    def _bind_finals(self, capacity: int) -> None:
        written, self._row_bytes = self.rows.n_finals, None
        for name, dtype in FINAL_ARRAYS.items():
            setattr(self, name, self._array((OWN, name), (capacity,), np.dtype(dtype), written))
        self.final_obs = self._leaves("final", self.layout, capacity, written)
        self.raw_final_obs = self.final_obs
        if self.raw_layout is not None:
            self.raw_final_obs = self._leaves("raw_final", self.raw_layout, capacity, written)
        self.rows.bind_finals(self._leaf_rows(self.raw_final_obs), self.final_prev_F, self.final_at_F)

    def _leaves(self, prefix: str, layout: RowLayout, capacity: int, written: int) -> list[np.ndarray]:
        return [
            self._array((OWN, f"{prefix}{i}"), (capacity, *leaf.shape), leaf.dtype, written)
            for i, leaf in enumerate(layout.leaves)
        ]

    def _leaf_rows(self, arrays: list[np.ndarray]) -> list[LeafRows]:
        leaves = (self.raw_layout or self.layout).leaves
        pairs = zip(arrays, leaves, strict=True)
        return [LeafRows(array, leaf.path, leaf.sizes, leaf.any_form) for array, leaf in pairs]

    def _output_array(self, key: Key, like: np.ndarray, dtype: np.dtype, written: int = 0) -> np.ndarray:
        """Return memory for the rows of an output, with the row shape of `like`."""
        return self._array((OUTPUT, key), (len(self.lane_R), *like.shape[1:]), dtype, written)

    def _array(self, key: tuple[int, Key], shape: tuple[Any, ...], dtype: np.dtype, written: int = 0) -> np.ndarray:
        """Return the array `key`; if shape or dtype differ, reallocate it and keep its first `written` rows."""
        memory = self._objects if dtype == object else self._memory.arrays
        old = memory.get(key)
        if old is None or old.shape != shape or old.dtype != dtype:
            memory[key] = np.empty(shape, dtype)
            if written and old is not None:
                memory[key][:written] = old[:written]
        return memory[key] if dtype == object else np.asarray(LeasedArray(memory[key], self.lease))

    lane_R: np.ndarray
    prev_R: np.ndarray
    env_t_R: np.ndarray
    reward_R: np.ndarray
    seq_no_R: np.ndarray  # sequence number of the weights that acted, written once per call
    final_prev_F: np.ndarray
    final_at_F: np.ndarray


def name_of(key: Key) -> Any:
    """Return the name of the output that a key belongs to."""
    return key if isinstance(key, str) else key[0]


def leaves_of(outputs: dict[str, Any]) -> dict[Key, Any]:
    """Flatten (nested) module outputs to {key: leaf}."""
    leaves: dict[Key, Any] = {}
    for name, value in outputs.items():
        key: Key = name if isinstance(name, str) else (name,)
        if isinstance(value, (dict, tuple, list)):
            leaves.update(((name, *path) if path else key, leaf) for path, leaf in flatten_struct(value))
        else:
            leaves[key] = value
    return leaves


def nested_outputs(leaves: Mapping[Key, Any]) -> dict[Any, Any]:
    """Rebuild nested outputs from flat leaves; inverse of `leaves_of()`."""
    paths: dict[Any, dict[tuple[Any, ...], Any]] = {}
    for key, leaf in leaves.items():
        paths.setdefault(name_of(key), {})[() if isinstance(key, str) else key[1:]] = leaf
    return {name: nested_struct(of_name) for name, of_name in paths.items()}


def own_key(own: Recorded, outputs: Iterable[Key], path: tuple[Any, ...] = (), columns: Collection[Key] = ()) -> Key:
    """Return a key for (a leaf of) a runner column, distinct from the keys of all module outputs.

    Args:
        own: Column that the runner records.
        outputs: Keys of the module outputs.
        path: Path of the leaf.
        columns: Keys of existing columns; if `(own,)` is among them, it stays in use.
    """
    name: OwnName = own if (own,) in columns else own_name(own, list(map(name_of, outputs)))
    return (name, *path) if path or isinstance(name, Recorded) else name


def _form(column: np.ndarray) -> str:
    return f"{column.dtype} of shape {list(column.shape[1:])} per row"


def _take(source: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    np.take(source, rows, axis=0, out=out[: len(rows)], mode="clip")  # "clip" avoids a buffer in NumPy


def _blank(key: Key, rows: np.ndarray) -> None:
    rows[...] = blank_value(key, rows.dtype)

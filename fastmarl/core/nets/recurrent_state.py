"""Storage of the recurrent states of a module by lane."""

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from fastmarl.core.errors import ModuleOutputError
from fastmarl.core.kernels.remap import first_steps, rows_to_lanes
from fastmarl.core.nets.output_checks import plain_tensor
from fastmarl.core.spaces.columns import Columns, Recorded
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.core.store.block import Key, own_key
from fastmarl.core.store.lanes import LaneTable


class LaneState:
    """The recurrent states of a module by lane.

    Args:
        initial: State before the first step of an agent: a nested dict of arrays or tensors without a batch axis.
        table: The lanes.
        casting: NumPy rule for casting later states to the dtype of the initial one.

    Attributes:
        initial: Leaves of the initial state.
    """

    def __init__(self, initial: Any, table: LaneTable, casting: Literal["safe", "unsafe"] = "safe"):
        self._table = table
        self._casting: Literal["safe", "unsafe"] = casting
        self._keys = [(Columns.STATE_OUT, *path) for path, _ in flatten_struct(initial)]
        self.initial = [_array(leaf) for _, leaf in flatten_struct(initial)]
        self._structure = initial
        self.forget()

    def forget(self) -> None:
        """Drop the states of all lanes."""
        self._values = [np.empty((0, *leaf.shape), leaf.dtype) for leaf in self.initial]  # per lane
        self._read: list[np.ndarray] = []

    def nest(self, leaves: list) -> Any:
        """Nest leaves like the initial state."""
        remaining = iter(leaves)
        return map_struct(lambda _: next(remaining), self._structure)

    def begin(self, lanes: np.ndarray) -> None:
        """Set the initial state in the `lanes` (int32 [n]) whose agents are about to take their first step."""
        table = self._table
        self._make_room()
        begun = np.empty_like(lanes)
        n = first_steps(lanes, table.t_started_L, table.count_L, table.lookback_L, begun)
        if n:
            for values, initial in zip(self._values, self.initial, strict=True):
                values[begun[:n]] = initial

    def _make_room(self) -> None:
        """Grow the arrays to the number of lanes in the table."""
        n_lanes = len(self._table.row_L)
        for i, values in enumerate(self._values):
            if len(values) < n_lanes:
                added = np.zeros((n_lanes - len(values), *values.shape[1:]), values.dtype)
                self._values[i] = np.concatenate([values, added])

    def of(self, lanes: np.ndarray) -> list[np.ndarray]:
        """Return the current states of `lanes` (int32 [n]) after their first step, as leaves [n, ...]."""
        return [values.take(lanes, 0) for values in self._values]

    def put(self, lanes: np.ndarray, leaves: list[np.ndarray]) -> None:
        """Set the states of `lanes` (int32 [n]) to `leaves` [n, ...]."""
        self._make_room()
        for values, leaf in zip(self._values, leaves, strict=True):
            values[lanes] = leaf

    def read(self, lanes: np.ndarray) -> list[np.ndarray]:
        """Return the input states of `lanes` for the next batch, whose outputs `write()` stores."""
        self.begin(lanes)
        self._read = self.of(lanes)
        return self._read

    def write(self, lanes: np.ndarray, outputs: dict[Key, np.ndarray], module_id: str) -> None:
        """Store the "state_out" outputs of a batch.

        Args:
            lanes: Lanes of the batch, int32 [n].
            outputs: Key -> output of the module.
            module_id: Id of the module, for error messages.

        Raises:
            ModuleOutputError: If a state is missing, or differs in shape or dtype from the initial one.
        """
        for key, values, read in zip(self._keys, self._values, self._read, strict=True):
            out = outputs.get(key if len(key) > 1 else key[0])
            if out is None or out.shape != read.shape:
                got = "nothing" if out is None else f"shape {out.shape}"
                raise ModuleOutputError(module_id, f"expected {key} of shape {read.shape}, got {got}")
            if out.dtype != read.dtype and not np.can_cast(out.dtype, read.dtype, self._casting):
                raise ModuleOutputError(module_id, f"expected {key} of dtype {read.dtype}, as in get_initial_state(), "
                                        f"got {out.dtype}; use the same dtype for both")  # fmt: skip
            rows = np.ascontiguousarray(out.reshape(len(lanes), -1), read.dtype)
            rows_to_lanes(rows, lanes, values.reshape(len(values), -1))

    def columns_out(self, leaves: list[np.ndarray]) -> dict[Key, np.ndarray]:
        """Return states after a step under the keys of the module outputs."""
        return {key if len(key) > 1 else key[0]: leaf for key, leaf in zip(self._keys, leaves, strict=True)}

    def columns_read(self, outputs: Iterable[Key]) -> dict[Key, np.ndarray]:
        """Return the states read for this batch, under keys that no module output uses."""
        keys = [own_key(Recorded.STATE_IN, outputs, key[1:]) for key in self._keys]
        return dict(zip(keys, self._read, strict=True))


def _array(leaf: Any) -> np.ndarray:
    return plain_tensor(leaf).numpy(force=True)

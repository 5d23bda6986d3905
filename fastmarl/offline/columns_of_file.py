"""The columns of a single file as NumPy arrays.

Axes in names: S trajectory, N row.
"""

from functools import cached_property
from typing import Any

import numpy as np

from fastmarl.core.batches.flat import Batch
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import map_struct
from fastmarl.offline.arrow import load
from fastmarl.offline.form import CHUNK, ENV_T, FINAL_ENV_T, FORM, LeafColumn, T, TableForm, nest
from fastmarl.offline.json_values import agent_from_text


class FileColumns:
    """Rows of a single module and form: steps, or lookback steps, which have no trajectory ends.

    Args:
        table: The contents of the file.

    Attributes:
        form: The form of the rows.
        n_rows: The number of rows.
    """

    def __init__(self, table: Any):
        self._table = table.combine_chunks()
        self.form, self.n_rows = TableForm(table.schema.metadata[FORM].decode()), table.num_rows

    def numbers(self, name: str) -> np.ndarray:
        """Return a plain column of numbers as an array [N]."""
        array = self._column(name).to_numpy(zero_copy_only=False)
        return array.astype(np.int64) if name == CHUNK else array

    def texts(self, name: str, rows: np.ndarray | None = None) -> list[str | None]:
        """Return a column of strings for the given rows, by default all."""
        column = self._column(name)
        return (column if rows is None else column.take(load().array(rows))).to_pylist()

    def has_any(self, name: str) -> bool:
        """Return whether a column has a value in at least one row."""
        column = self._column(name)
        return column.null_count < len(column)

    @cached_property
    def end_S(self) -> np.ndarray:
        """The position after the last row of each trajectory, int64 [S]."""
        return np.flatnonzero(self._column(FINAL_ENV_T).is_valid().to_numpy(zero_copy_only=False)) + 1

    @cached_property
    def final_env_t_S(self) -> np.ndarray:
        return self._column(FINAL_ENV_T).drop_null().to_numpy()

    def leaf(self, described: LeafColumn, *, drop_null: bool = False, n: int | None = None) -> np.ndarray:
        """Return a column as an array; `n` is the number of rows of zero-size columns, which are not stored."""
        if described.arrow_type() is None:
            return np.empty((self.n_rows if n is None else n, *described.shape), described.dtype)
        column = self._column(described.name)
        return described.to_numpy(column.drop_null() if drop_null else column)

    def leaves(self) -> list[np.ndarray]:
        return [self.leaf(described) for described in self.form.leaves]

    def final_obs(self) -> list[np.ndarray]:
        """Return the leaves of the final observations, each [S, ...]."""
        n = len(self.end_S)
        return [self.leaf(each, drop_null=True, n=n) for each in self.form.of_obs(Columns.FINAL_OBS)]

    def batch(self, order: np.ndarray, *, next_obs: bool) -> Batch:
        """Return these rows as a batch; see `ParquetReader.iter_batches()`."""
        form, leaves = self.form, self.leaves()
        batch: Batch = {Columns.OBS: nest(form.obs, leaves), Columns.ACTIONS: nest(form.actions, leaves)}
        batch |= {
            str(getattr(name, "value", name)): nest(struct, leaves)
            for name, struct in form.outputs.items()
            if str(getattr(name, "value", name)) not in batch
        }
        names = (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, T, ENV_T)
        batch |= {name: self.numbers(name) for name in names}
        for name in (Columns.EPS_ID, Columns.INFOS):
            batch[name] = self._column(name).to_numpy(zero_copy_only=False)
        batch[Columns.AGENT_ID] = self._agent_ids()
        if next_obs:
            batch[Columns.NEXT_OBS] = nest(form.obs, self._next_obs(leaves))
        return {name: map_struct(lambda leaf: leaf[order], column) for name, column in batch.items()}

    def _next_obs(self, leaves: list[np.ndarray]) -> list[np.ndarray]:
        """Return the leaves [N, ...] of the observation after each step, from the next row or the final observation."""
        last = self.end_S - 1
        found = []
        for leaf, final in zip(leaves[: len(self.form.obs_leaves)], self.final_obs(), strict=True):
            after = np.empty_like(leaf)
            after[:-1] = leaf[1:]
            after[last] = final
            found.append(after)
        return found

    def _agent_ids(self) -> np.ndarray:
        """Return the agent ids as an object array [N], with tuples as single items."""
        column = self._column(Columns.AGENT_ID).dictionary_encode()
        ids = np.fromiter(map(agent_from_text, column.dictionary.to_pylist()), object, len(column.dictionary))
        return ids[column.indices.to_numpy()]

    def _column(self, name: str) -> Any:
        pa = load()
        column = self._table.column(name)
        if column.num_chunks == 1:
            return column.chunk(0)
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)

"""Columns of a single agent in a chunk: views of the block filled by the `sample()` call, or copies."""

import math
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from fastmarl.core.episodes.sources import write_rows
from fastmarl.core.errors import EpisodeError
from fastmarl.core.native import _store
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import map_struct
from fastmarl.core.store.block import Block

ALIGNMENT = 16  # bytes
KEPT_FORMS = 16


class LaneRows(NamedTuple):
    """The rows of a lane in its block."""

    block: Block
    last_row: int  # the row where the chain of the lane's rows ends
    n_rows: int
    final: int  # index of the final observation, or -1
    end_env_t: int  # env step of the final observation


class BlockColumns:
    """The columns of a lane in a chunk, read from its block on demand."""

    __slots__ = ("_rows", "lane_rows")

    def __init__(self, lane_rows: LaneRows):
        self.lane_rows = lane_rows
        self._rows: slice | np.ndarray | None = None

    @property
    def n_obs(self) -> int:
        return self.lane_rows.n_rows + (self.lane_rows.final >= 0)

    def observations(self) -> Any:
        """Return observations [n_obs, ...], nested like the space; views, or copies if there is a final observation."""
        block = self.lane_rows.block
        if self.lane_rows.final < 0:
            leaves = [self._column(array, self.n_obs) for array in block.obs]
        else:
            leaves = [self._with_final(array, finals) for array, finals in zip(block.obs, block.final_obs, strict=True)]
        return block.layout.nest(leaves)

    def env_ts(self) -> np.ndarray:
        """Return the env step of each observation, int64 [n_obs]."""
        block, _, n_rows, final, end_env_t = self.lane_rows
        env_ts = self._column(block.env_t_R, n_rows).astype(np.int64)
        return np.append(env_ts, end_env_t) if final >= 0 else env_ts

    def rewards(self) -> np.ndarray:
        block = self.lane_rows.block
        return block.recorded_rewards(self._column(block.reward_R, self.n_obs - 1))

    def extra_keys(self) -> tuple[str, ...]:
        return self.lane_rows.block.output_keys()

    def extra(self, key: str) -> Any:
        n, block = self.n_obs - 1, self.lane_rows.block
        if not n and not block.outputs:
            return np.zeros(0)  # the module has not acted yet
        return map_struct(lambda leaf: self._column(leaf, n), block.output(key))

    def put(self, what: str, key: str | None, rows: np.ndarray, values: Any) -> bool:
        """Write to the block while the `sample()` call is running; see `LaneSource.put()`.

        Afterwards, returned data must not change, so this writes nothing and returns False. Rewards that a connector
        transforms are never writable.
        """
        block, _, n_rows, final, _ = self.lane_rows
        if not block.is_open or (what == "rewards" and block.changes_rewards):
            return False
        if what == "rewards":
            write_rows(block.reward_R, self._block_rows(rows), values)
        elif what == "observations":
            in_rows = rows < n_rows
            chosen = map_struct(lambda leaf: leaf[in_rows], values)
            write_rows(block.layout.nest(block.obs), self._block_rows(rows[in_rows]), chosen)
            if not in_rows.all():
                chosen = map_struct(lambda leaf: leaf[~in_rows], values)
                write_rows(block.layout.nest(block.final_obs), np.full(len(rows), final)[~in_rows], chosen)
        else:
            write_rows(block.output(Columns.ACTIONS if key is None else key), self._block_rows(rows), values)
        return True

    def _block_rows(self, rows: np.ndarray) -> np.ndarray:
        """Convert indices of the lane's rows to rows of the block, int64."""
        of_lane = self._row_index()
        if isinstance(of_lane, slice):
            of_lane = np.arange(of_lane.start, of_lane.stop, of_lane.step)
        in_block: np.ndarray = of_lane[rows]
        return in_block

    def _column(self, array: np.ndarray, n: int) -> np.ndarray:
        return array[self._row_index()][:n]

    def _with_final(self, array: np.ndarray, finals: np.ndarray) -> np.ndarray:
        """Copy the lane's rows of an array, followed by the final one, in a single pass."""
        rows, final = self._row_index(), finals[self.lane_rows.final : self.lane_rows.final + 1]
        if isinstance(rows, slice):
            return np.concatenate([array[rows], final])
        column = array.take(np.append(rows, rows[-1]), 0)
        column[-1:] = final
        return column

    def _row_index(self) -> slice | np.ndarray:
        if self._rows is None:
            block, last_row, n_rows, _, _ = self.lane_rows
            rows, stride = _store.chain(block.prev_R, last_row, n_rows)
            # An agent that joined in the last step before its env failed has a final observation but no rows.
            begin, end = (int(rows[0]), int(rows[-1]) + 1) if n_rows else (0, 0)
            self._rows = slice(begin, end, stride) if stride else rows
        return self._rows


class Form(NamedTuple):
    """Structure, dtypes and shapes of an agent's columns; equal forms share one object."""

    observations: Any  # nested like the observations, with indices into `leaves`
    n_of_obs: int  # number of leaves with one item per observation: `observations`, then env_ts
    outputs: dict[str, Any]  # name (including actions) -> indices into `leaves`, nested like the output
    leaves: tuple[tuple[np.dtype, tuple[int, ...]], ...]  # dtype and shape of an item


_forms: tuple[Form, ...] = ()  # most recently created first


class CopiedColumns:
    """Copies of a lane's columns; numeric columns share a single buffer."""

    __slots__ = ("_form", "_memory", "_objects", "n_obs")

    def __init__(self, source: BlockColumns):
        leaves: list[np.ndarray] = []

        def index_of(leaf: np.ndarray) -> int:
            leaves.append(leaf)
            return len(leaves) - 1

        observations = map_struct(index_of, source.observations())
        n_of_obs = index_of(source.env_ts()) + 1
        index_of(source.rewards())
        outputs = {key: map_struct(index_of, source.extra(key)) for key in (Columns.ACTIONS, *source.extra_keys())}
        like = tuple((leaf.dtype, leaf.shape[1:]) for leaf in leaves)
        self._form = _shared(Form(observations, n_of_obs, outputs, like))
        self.n_obs = source.n_obs
        self._objects = {index: leaf.copy() for index, leaf in enumerate(leaves) if leaf.dtype == object}
        self._memory = np.empty(sum(map(self._room, range(len(leaves)))), np.uint8)
        for index, leaf in enumerate(leaves):
            self._leaf(index)[...] = leaf

    def observations(self) -> Any:
        return map_struct(self._leaf, self._form.observations)

    def env_ts(self) -> np.ndarray:
        return self._leaf(self._form.n_of_obs - 1)

    def rewards(self) -> np.ndarray:
        return self._leaf(self._form.n_of_obs)

    def extra_keys(self) -> tuple[str, ...]:
        return tuple(name for name in self._form.outputs if name != Columns.ACTIONS)

    def extra(self, key: str) -> Any:
        return map_struct(self._leaf, self._form.outputs[key])

    def _n_items(self, index: int) -> int:
        return self.n_obs - (index >= self._form.n_of_obs)

    def _room(self, index: int) -> int:
        """Return the size of a leaf in bytes, including padding."""
        dtype, shape = self._form.leaves[index]
        n_bytes = 0 if dtype == object else dtype.itemsize * math.prod(shape) * self._n_items(index)
        return -(-n_bytes // ALIGNMENT) * ALIGNMENT

    def _leaf(self, index: int) -> np.ndarray:
        if index in self._objects:
            return self._objects[index]
        dtype, shape = self._form.leaves[index]
        begin = sum(map(self._room, range(index)))
        return np.ndarray((self._n_items(index), *shape), dtype, self._memory, begin)


def _shared(form: Form) -> Form:
    global _forms
    known = next((other for other in _forms if other == form), None)
    if known is None:
        _forms = (form, *_forms[: KEPT_FORMS - 1])
    return known or form


class LaneSource:
    """The columns of a lane in a chunk; views of a block until `compact()` copies them.

    Args:
        lane_rows: The rows of the lane in the block.
        infos_at: Env step -> info, for steps with an info.
        is_under_way: True while the runner may still add steps to the chunk.
        is_private: If True, writes are not recorded.
    """

    __slots__ = ("__weakref__", "_columns", "_infos_at", "_is_private", "is_under_way")

    def __init__(
        self,
        lane_rows: LaneRows,
        infos_at: dict[int, dict[str, Any]],
        *,
        is_under_way: bool = False,
        is_private: bool = False,
    ):
        self.is_under_way = is_under_way
        self._is_private = is_private
        self._columns: BlockColumns | CopiedColumns = BlockColumns(lane_rows)
        self._infos_at = infos_at
        lane_rows.block.readers.append(ref(self))

    def lane_rows(self) -> LaneRows | None:
        """Return the rows of the block that hold the columns, or None if the columns have been copied."""
        columns = self._columns
        return columns.lane_rows if isinstance(columns, BlockColumns) else None

    def compact(self) -> None:
        """Copy the columns and release the block. Other threads can read the columns meanwhile."""
        columns = self._columns
        if isinstance(columns, BlockColumns):
            self._columns = CopiedColumns(columns)

    def put(self, what: str, key: str | None, rows: np.ndarray, values: Any) -> bool:
        """Write `values` [k, ...] to rows (int64 [k], including the lookback) of a column in an open block.

        `what` and `key` are as in `SingleAgentEpisode.get()`. Returns False without writing if the column is read-only.

        Raises:
            EpisodeError: If the episode is running and this column is not writable.
        """
        if self._is_private:
            return False
        columns = self._columns
        if what != "infos" and isinstance(columns, BlockColumns) and columns.put(what, key, rows, values):
            return True
        if self.is_under_way:
            raise EpisodeError(f"cannot set {what} here: while an episode is running, infos are read-only, rewards are "
                               f"read-only with reward_scale or clip_rewards, and an episode passed to a callback is "
                               f"read-only once sample() returns; set them in on_episode_end or "
                               f"on_sample_end")  # fmt: skip
        return False

    @property
    def n_obs(self) -> int:
        return self._columns.n_obs

    def observations(self) -> Any:
        return self._columns.observations()

    def env_ts(self) -> np.ndarray:
        return self._columns.env_ts()

    def infos(self) -> list[dict[str, Any]]:
        if not self._infos_at:
            return [{} for _ in range(self.n_obs)]
        return [self._infos_at.get(env_t, {}) for env_t in self.env_ts().tolist()]

    def actions(self) -> Any:
        return self._columns.extra(Columns.ACTIONS)

    def rewards(self) -> np.ndarray:
        return self._columns.rewards()

    def extra_keys(self) -> tuple[str, ...]:
        return self._columns.extra_keys()

    def extra(self, key: str) -> Any:
        return self._columns.extra(key)

"""The columns of one agent in one chunk: views of what its call has recorded, or copies that are its own."""

import math
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from fastmarl.columns import Columns
from fastmarl.native import _store
from fastmarl.record.block import Block
from fastmarl.spaces import map_struct

ALIGNMENT = 16  # bytes
KEPT_FORMS = 16


class Place(NamedTuple):
    """Where one lane's columns are in its block."""

    block: Block
    last_row: int  # of the chain of its rows
    n_rows: int
    final: int  # place of the final observation, or -1
    end_env_t: int  # env step of the final observation


class BlockColumns:
    """The columns of one lane in one chunk, looked up in its block when asked for."""

    __slots__ = ("_rows", "place")

    def __init__(self, place: Place):
        self.place = place
        self._rows: slice | np.ndarray | None = None

    @property
    def n_obs(self) -> int:
        return self.place.n_rows + (self.place.final >= 0)

    def observations(self) -> Any:
        """[n_obs, ...], nested as in their space; a copy where a final observation is appended, else views."""
        block = self.place.block
        if self.place.final < 0:
            leaves = [self._column(array, self.n_obs) for array in block.obs]
        else:
            leaves = [self._with_final(array, finals) for array, finals in zip(block.obs, block.final_obs, strict=True)]
        return block.layout.nest(leaves)

    def env_ts(self) -> np.ndarray:
        """int64 [n_obs]: env step of each observation."""
        block, _, n_rows, final, end_env_t = self.place
        env_ts = self._column(block.env_t_R, n_rows).astype(np.int64)
        return np.append(env_ts, end_env_t) if final >= 0 else env_ts

    def rewards(self) -> np.ndarray:
        block = self.place.block
        return block.recorded_rewards(self._column(block.reward_R, self.n_obs - 1))

    def extra_keys(self) -> tuple[str, ...]:
        return self.place.block.output_keys()

    def extra(self, key: str) -> Any:
        return map_struct(lambda leaf: self._column(leaf, self.n_obs - 1), self.place.block.output(key))

    def _column(self, array: np.ndarray, n: int) -> np.ndarray:
        return array[self._lane_rows()][:n]

    def _with_final(self, array: np.ndarray, finals: np.ndarray) -> np.ndarray:
        """The lane's rows of an array, and the final one behind them: copied once."""
        rows, final = self._lane_rows(), finals[self.place.final : self.place.final + 1]
        if isinstance(rows, slice):
            return np.concatenate([array[rows], final])
        column = array.take(np.append(rows, rows[-1]), 0)
        column[-1:] = final
        return column

    def _lane_rows(self) -> slice | np.ndarray:
        if self._rows is None:
            rows, stride = _store.chain(self.place.block.prev_R, self.place.last_row, self.place.n_rows)
            self._rows = slice(int(rows[0]), int(rows[-1]) + 1, stride) if stride else rows
        return self._rows


class Form(NamedTuple):
    """What an agent's columns look like; those that look alike share one."""

    observations: Any  # nested as they are, with places among the leaves
    n_of_obs: int  # leaves with an item for each observation: those of the observations, and env_ts after them
    outputs: dict[str, Any]  # by name, actions too: nested as the output, with places
    leaves: tuple[tuple[np.dtype, tuple[int, ...]], ...]  # dtype, shape of an item


_forms: tuple[Form, ...] = ()  # those that were used last


class OwnColumns:
    """Copies of columns in a block, numbers in one piece of memory of their size."""

    __slots__ = ("_form", "_memory", "_objects", "n_obs")

    def __init__(self, source: BlockColumns):
        leaves: list[np.ndarray] = []

        def place_of(leaf: np.ndarray) -> int:
            leaves.append(leaf)
            return len(leaves) - 1

        observations = map_struct(place_of, source.observations())
        n_of_obs = place_of(source.env_ts()) + 1
        place_of(source.rewards())
        outputs = {key: map_struct(place_of, source.extra(key)) for key in (Columns.ACTIONS, *source.extra_keys())}
        like = tuple((leaf.dtype, leaf.shape[1:]) for leaf in leaves)
        self._form = _shared(Form(observations, n_of_obs, outputs, like))
        self.n_obs = source.n_obs
        self._objects = {place: leaf.copy() for place, leaf in enumerate(leaves) if leaf.dtype == object}
        self._memory = np.empty(sum(map(self._room, range(len(leaves)))), np.uint8)
        for place, leaf in enumerate(leaves):
            self._leaf(place)[...] = leaf

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

    def _n_items(self, place: int) -> int:
        return self.n_obs - (place >= self._form.n_of_obs)

    def _room(self, place: int) -> int:
        """Bytes of a leaf, up to where the next one may begin."""
        dtype, shape = self._form.leaves[place]
        n_bytes = 0 if dtype == object else dtype.itemsize * math.prod(shape) * self._n_items(place)
        return -(-n_bytes // ALIGNMENT) * ALIGNMENT

    def _leaf(self, place: int) -> np.ndarray:
        if place in self._objects:
            return self._objects[place]
        dtype, shape = self._form.leaves[place]
        begin = sum(map(self._room, range(place)))
        return np.ndarray((self._n_items(place), *shape), dtype, self._memory, begin)


def _shared(form: Form) -> Form:
    global _forms
    known = next((other for other in _forms if other == form), None)
    if known is None:
        _forms = (form, *_forms[: KEPT_FORMS - 1])
    return known or form


class LaneSource:
    """The columns of one lane in one chunk, where a block has them, until `compact()` makes copies.

    Args:
        place: of the lane's rows.
        infos_at: env step -> info, of the steps that had one.
    """

    __slots__ = ("__weakref__", "_columns", "_infos_at")

    def __init__(self, place: Place, infos_at: dict[int, dict[str, Any]]):
        self._columns: BlockColumns | OwnColumns = BlockColumns(place)
        self._infos_at = infos_at
        place.block.readers.append(ref(self))

    def place(self) -> Place | None:
        """Where the columns are in a block; None: they are in none any more."""
        columns = self._columns
        return columns.place if isinstance(columns, BlockColumns) else None

    def compact(self) -> None:
        """Let the block go. Threads may read the columns meanwhile: what they get is the same."""
        columns = self._columns
        if isinstance(columns, BlockColumns):
            self._columns = OwnColumns(columns)

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

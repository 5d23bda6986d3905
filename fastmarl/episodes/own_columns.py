"""The columns of one agent in one chunk: views of what its call has recorded, or copies that are its own."""

import math
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from fastmarl.columns import Columns
from fastmarl.record.block import Block, BlockSource, Place
from fastmarl.spaces import map_struct

ALIGNMENT = 16  # bytes
KEPT_FORMS = 16


class Form(NamedTuple):
    """What an agent's columns look like; those that look alike share one."""

    observations: Any  # nested as they are, with places among the leaves
    n_of_obs: int  # leaves with an item for each observation: those of the observations, and env_ts after them
    outputs: dict[str, Any]  # by name, actions too: nested as the output, with places
    leaves: tuple[tuple[np.dtype, tuple[int, ...]], ...]  # dtype, shape of an item


_forms: tuple[Form, ...] = ()  # those that were used last


class OwnColumns:
    """Copies of a block source's columns, numbers in one piece of memory of their size. A source itself."""

    __slots__ = ("_form", "_infos_at", "_memory", "_objects", "n_obs")

    def __init__(self, source: BlockSource):
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
        self._infos_at = source.infos_at
        self.n_obs = source.n_obs
        self._objects = {place: leaf.copy() for place, leaf in enumerate(leaves) if leaf.dtype == object}
        self._memory = np.empty(sum(map(self._room, range(len(leaves)))), np.uint8)
        for place, leaf in enumerate(leaves):
            self._leaf(place)[...] = leaf

    def observations(self) -> Any:
        return map_struct(self._leaf, self._form.observations)

    def env_ts(self) -> np.ndarray:
        return self._leaf(self._form.n_of_obs - 1)

    def infos(self) -> list[dict[str, Any]]:
        return [self._infos_at.get(env_t, {}) for env_t in self.env_ts().tolist()]

    def rewards(self) -> np.ndarray:
        return self._leaf(self._form.n_of_obs)

    def actions(self) -> Any:
        return self.extra(Columns.ACTIONS)

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
        block, args: see BlockSource.
    """

    __slots__ = ("__weakref__", "_columns")

    def __init__(self, block: Block, *args: Any):
        self._columns: BlockSource | OwnColumns = BlockSource(block, *args)
        block.readers.append(ref(self))

    def place(self) -> Place | None:
        """Where the columns are in a block; None: they are in none any more."""
        columns = self._columns
        return columns.place() if isinstance(columns, BlockSource) else None

    def compact(self) -> None:
        """Let the block go. Threads may read the columns meanwhile: what they get is the same."""
        columns = self._columns
        if isinstance(columns, BlockSource):
            self._columns = OwnColumns(columns)

    @property
    def n_obs(self) -> int:
        return self._columns.n_obs

    def observations(self) -> Any:
        return self._columns.observations()

    def env_ts(self) -> np.ndarray:
        return self._columns.env_ts()

    def infos(self) -> list[dict[str, Any]]:
        return self._columns.infos()

    def actions(self) -> Any:
        return self._columns.actions()

    def rewards(self) -> np.ndarray:
        return self._columns.rewards()

    def extra_keys(self) -> tuple[str, ...]:
        return self._columns.extra_keys()

    def extra(self, key: str) -> Any:
        return self._columns.extra(key)

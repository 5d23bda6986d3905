"""RLlib's FrameStacking on entire columns: stacks the last observations of an agent, storing each only once."""

from collections.abc import Hashable
from typing import Any

import numpy as np
import tree
from ray.rllib.utils.spaces.space_utils import batch as batch_of
from ray.rllib.utils.spaces.space_utils import get_dummy_batch_for_space

from fastmarl.core.kernels.frames import as_compiled, former_rows, gather_frames
from fastmarl.rllib.connectors.newest import Newest
from fastmarl.rllib.store.block import RLlibBlock

FRAME_AXES = 3  # height, width, channels; RLlib concatenates frames along the last axis


class StackedFrames:
    """Stacks frames like RLlib's FrameStacking.

    Stacks are built as soon as observations arrive, because the next chunk may have a shorter lookback.

    Args:
        piece: The RLlib connector piece.
        spaces: Per env, agent id -> observation space.
    """

    def __init__(self, piece: Any, spaces: list[dict[Hashable, Any]]):
        self.piece = piece
        self._spaces = spaces
        self._stacks: dict[int, Any] = {}  # keyed by module index
        self._forms: dict[tuple[int, Hashable], tuple[Any, Any] | None] = {}

    def stack(self, newest: Newest, whole: dict[tuple[int, Hashable], Any]) -> None:
        """Stack the frames up to these rows, as input for the next actions of the module.

        Args:
            newest: Latest observations of a module.
            whole: (env index, agent id) -> agent episode that user code may have modified; its frames are used instead.
        """
        rows = np.empty((len(newest.rows), self.piece.num_frames), np.int64)
        former_rows(newest.rows, newest.block.prev_R, rows)
        if not whole and self._are_alike(newest):
            self._stacks[newest.module] = self._by_columns(newest, rows)
        elif len(rows):
            who = newest.who[: len(rows)]
            self._stacks[newest.module] = batch_of(
                [self._one(newest.block, *each) for each in zip(rows.tolist(), who, map(whole.get, who), strict=True)]
            )

    def of(self, module: int) -> Any:
        """Return the input of a module: an array [n, height, width, channels x frames], or a nest of such arrays."""
        return self._stacks[module]

    def _are_alike(self, newest: Newest) -> bool:
        layout = newest.block.layout
        if not layout.is_array or len(layout.leaves[0].shape) != FRAME_AXES:
            return False
        form = layout.leaves[0].dtype, layout.leaves[0].shape
        return all(self._form_of(who) == form for who in newest.who)

    def _form_of(self, who: tuple[int, Hashable]) -> tuple[Any, Any] | None:
        """Return (dtype, shape) of the observation space of an agent, or None if there is no such space."""
        if who not in self._forms:
            space = self._spaces[who[0]].get(who[1])
            self._forms[who] = None if space is None else (space.dtype, space.shape)
        return self._forms[who]

    def _by_columns(self, newest: Newest, rows: np.ndarray) -> np.ndarray:
        frames, (n, n_frames) = newest.block.obs[0], rows.shape
        height, width, channels = frames.shape[1:]
        stacked = np.empty((n, height * width, n_frames, channels), frames.dtype)
        frames = frames.reshape(len(frames), height * width, channels)
        gather_frames(as_compiled(frames), rows, as_compiled(stacked))
        return stacked.reshape(n, height, width, n_frames * channels)

    def _one(self, block: RLlibBlock, rows: list[int], who: tuple[int, Hashable], whole: Any) -> Any:
        if whole is not None:
            frames = whole.get_observations(slice(-len(rows), None), fill=0.0)
        else:
            space = self._spaces[who[0]].get(who[1])
            zeros = 0.0 if space is None else get_dummy_batch_for_space(space, fill_value=0.0, batch_size=0)
            known = [row for row in rows if row >= 0]
            leaves = [leaf[known] for leaf in block.obs]
            items = block.layout.items(leaves[0] if block.layout.has_objects else block.layout.nest(leaves))
            frames = [zeros] * (len(rows) - len(known)) + items
        return tree.map_structure(lambda *parts: np.concatenate(parts, axis=FRAME_AXES - 1), *frames)

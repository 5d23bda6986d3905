"""Runs the env-to-module connectors that come before the RLlib defaults; they rewrite the latest observations.

RLlib runs them after the env step and the callbacks, first on finished episodes, then on running ones. Each piece
replaces the latest observation of each agent; modules act on the result, which is also stored. A column connector is
used if its result is bit-identical; otherwise the original piece runs.
"""

from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Any, Protocol

from ray.rllib.connectors import env_to_module
from ray.rllib.connectors.common.flatten_observations import FlattenObservations
from ray.rllib.connectors.common.frame_stacking import FrameStacking

from fastmarl.rllib.connectors.flatten import FlattenedColumns
from fastmarl.rllib.connectors.frames import StackedFrames
from fastmarl.rllib.connectors.mean_std import FilteredColumns
from fastmarl.rllib.connectors.newest import ColumnConnector, Newest
from fastmarl.rllib.connectors.previous import ColumnsWithPrevious
from fastmarl.rllib.store.store import RLlibStore

Spaces = list[tuple[dict[Hashable, Any], dict[Hashable, Any]]]

Batch = dict[str, Any]
Parts = dict[tuple[int, Hashable], Any]
"""(env index, agent id) -> agent episode."""


class Episodes(Protocol):
    """Interface to episodes for connectors; implemented by `PiecesInPython`."""

    def run(self, piece: Any, newest: list[Newest], batch: Batch, *, has_ended: bool) -> Batch:
        """Call the original piece on the latest observations of either finished or running episodes."""

    def built_parts(self, *, has_ended: bool) -> Parts:
        """Return the episodes built for callbacks or pieces, which may have modified them."""


class Connectors:
    """Runs connector pieces.

    Args:
        pieces: The pieces of a pipeline before the RLlib defaults, for which `pieces.problems()` is empty.
        store: The store of all rows.
        spaces: Per env, ({agent id: observation space}, {agent id: action space}).

    Attributes:
        pieces: The argument `pieces`.
        frames: Stacks frames for modules, or None if there is no such piece.
    """

    def __init__(self, pieces: list[Any], store: RLlibStore, spaces: Spaces):
        self.pieces = pieces
        self.frames: StackedFrames | None = None
        self._store = store
        self._rewriters: list[tuple[Any, ColumnConnector | None]] = []
        for piece, following in pairwise([*pieces, None]):
            if type(piece) is FrameStacking:
                self.frames = StackedFrames(piece, [observations for observations, _ in spaces])
            else:
                self._rewriters.append((piece, _by_columns(piece, following, spaces)))

    def run(self, done: list[int], episodes: Episodes, pass_ended: Callable[[], None]) -> Batch:
        """Run all pieces on the latest observations and store the result.

        Args:
            done: Indices of the envs whose episode has just finished.
            episodes: Episodes for pieces that cannot run on entire columns.
            pass_ended: Called after the pieces have run on the finished episodes.

        Returns:
            The batch after all pieces have run, starting from an empty one.
        """
        batch: Batch = {}
        newest = [Newest.of(module, block, self._store.table) for module, block in enumerate(self._store.blocks)]
        parts = [(newest, False)]
        if done:
            of_done, others = zip(*(each.parted(done) for each in newest), strict=True)
            parts = [([*of_done], True), ([*others], False)]
        for part, has_ended in parts:
            part, batch = [each for each in part if len(each)], {}
            for piece, by_columns in self._rewriters:
                batch = self._run(piece, by_columns, part, batch, has_ended, episodes)
            for each in part if self._rewriters else ():
                each.record()
            if has_ended:
                pass_ended()
        if self.frames is not None:
            whole = episodes.built_parts(has_ended=False)
            for each in newest:
                self.frames.stack(each, whole)
        for block in self._store.blocks:
            block.n_connected, block.n_finals_connected = block.rows.n, block.rows.n_finals
        return batch

    def _run(
        self,
        piece: Any,
        by_columns: ColumnConnector | None,
        newest: list[Newest],
        batch: Batch,
        has_ended: bool,
        episodes: Episodes,
    ) -> Batch:
        whole, change = episodes.built_parts(has_ended=has_ended), None
        if by_columns is not None and not (by_columns.reads_steps and whole):
            change = by_columns.rewrite(newest)
        if by_columns is None or change is None:
            return episodes.run(piece, newest, batch, has_ended=has_ended)
        change()
        for each in newest:
            self._store.spaces.update(dict.fromkeys(each.lanes.tolist(), by_columns.space))
            if whole:
                _show(each, by_columns.space, whole)
        return batch


def _show(newest: Newest, space: Any, whole: Parts) -> None:
    """Write the rewritten observations into the built episodes."""
    for who, item in zip(newest.who, newest.items(), strict=True):
        if who in whole:
            whole[who].observations.data[-1], whole[who].observation_space = item, space


def _by_columns(piece: Any, following: Any, spaces: Spaces) -> ColumnConnector | None:
    if type(piece) is FlattenObservations:
        return FlattenedColumns(piece)
    if type(piece) is env_to_module.MeanStdFilter:
        return FilteredColumns(piece)
    # The dtype of rewards differs from row to row until they are flattened to float32.
    if type(piece) is env_to_module.PrevActionsPrevRewards and type(following) is FlattenObservations:
        return ColumnsWithPrevious(piece, [actions for _, actions in spaces])
    return None

"""The env-to-module connectors between RLlib's first piece and its default ones: they rewrite newest observations.

RLlib runs them after the envs have stepped and callbacks were told: upon episodes that have ended, then upon those that
go on. Each piece puts another observation in the place of each agent's newest one, which is what modules act upon and
what the record keeps. By columns where it can be done to the bit; else RLlib's piece, or the user's, runs itself.
"""

from collections.abc import Callable, Hashable
from typing import Any

from ray.rllib.connectors import env_to_module
from ray.rllib.connectors.common.flatten_observations import FlattenObservations
from ray.rllib.connectors.common.frame_stacking import FrameStacking

from fastmarl.rllib.connecting.columns import ColumnConnector
from fastmarl.rllib.connecting.flatten import FlattenedColumns
from fastmarl.rllib.connecting.frames import StackedFrames
from fastmarl.rllib.connecting.mean_std import FilteredColumns
from fastmarl.rllib.connecting.newest import Newest
from fastmarl.rllib.connecting.previous import ColumnsWithPrevious
from fastmarl.rllib.recording.store import RLlibStore

Spaces = list[tuple[dict[Hashable, Any], dict[Hashable, Any]]]


class Connectors:
    """Runs connector pieces.

    Args:
        pieces: those of a pipeline beside RLlib's default ones; `pieces.problems()` has nothing to say against them.
        store: what is recorded.
        spaces: per env, ({agent id: observation space}, {agent id: action space}).

    Attributes:
        pieces: these.
        frames: what stacks frames for modules, if a piece does.
        in_python: called with (piece, newest observations, whether these are of episodes that have ended) to have a
            piece run itself.
        whole_parts: the agents' episodes of those that callbacks or pieces have made whole, and maybe written into, by
            (env index, agent id); given whether those are meant that have ended.
        on_rewritten: called with (newest observations, observation space, whether these are of episodes that have
            ended) when a piece was done by columns.
    """

    in_python: Callable[[Any, list[Newest], bool], None]
    whole_parts: Callable[[bool], dict[tuple[int, Hashable], Any]]
    on_rewritten: Callable[[Newest, Any, bool], None]

    def __init__(self, pieces: list[Any], store: RLlibStore, spaces: Spaces):
        self.pieces = pieces
        self.frames: StackedFrames | None = None
        self._store = store
        self._rewriters: list[tuple[Any, ColumnConnector | None]] = []
        for piece in self.pieces:
            if type(piece) is FrameStacking:
                self.frames = StackedFrames(piece, [observations for observations, _ in spaces])
            else:
                self._rewriters.append((piece, _by_columns(piece, spaces)))

    def run(self, done: list[int]) -> None:
        """Have all that has come go through the pieces, and on record.

        Args:
            done: envs whose episodes have ended, and begun anew.
        """
        newest = [Newest.of(module, block, self._store.table) for module, block in enumerate(self._store.blocks)]
        parts = [(newest, False)]
        if done:
            of_done, others = zip(*(each.parted(done) for each in newest), strict=True)
            parts = [([*of_done], True), ([*others], False)]
        for part, has_ended in parts:
            for piece, by_columns in self._rewriters:
                self._run(piece, by_columns, [each for each in part if len(each)], has_ended)
            for each in part:
                if len(each) and self._rewriters:
                    each.record()
        if self.frames is not None:
            for each in newest:
                self.frames.stack(each, self.whole_parts(False))
        for block in self._store.blocks:
            block.n_connected, block.n_finals_connected = block.rows.n, block.rows.n_finals

    def _run(self, piece: Any, by_columns: ColumnConnector | None, newest: list[Newest], has_ended: bool) -> None:
        change = None
        if by_columns is not None and not (by_columns.reads_steps and self.whole_parts(has_ended)):
            change = by_columns.rewrite(newest)
        if by_columns is None or change is None:
            self.in_python(piece, newest, has_ended)
            return
        change()
        for each in newest:
            self._store.spaces.update(dict.fromkeys(each.lanes.tolist(), by_columns.space))
            self.on_rewritten(each, by_columns.space, has_ended)


def _by_columns(piece: Any, spaces: Spaces) -> ColumnConnector | None:
    if type(piece) is FlattenObservations:
        return FlattenedColumns(piece)
    if type(piece) is env_to_module.MeanStdFilter:
        return FilteredColumns(piece)
    if type(piece) is env_to_module.PrevActionsPrevRewards:
        return ColumnsWithPrevious(piece, [actions for _, actions in spaces])
    return None

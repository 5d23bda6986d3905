"""The chunks of earlier calls that are still referenced, and what they cost."""

from collections import deque
from collections.abc import Iterable
from typing import Any
from weakref import ref

from fastmarl.core.episodes.lane_source import LaneSource
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.native._garbage import without_collection
from fastmarl.core.store.block import Block

PATIENCE = 4  # calls whose chunks may be held without a question: as many blocks are kept idle
ENOUGH = 0.25  # of a block's rows in use, and it may stay


class KeptChunks:
    """Watches what becomes of the chunks that calls return.

    They are views of the blocks that their calls have filled, and each view keeps a whole block. Who drops a call's
    chunks together pays nothing for that; who keeps few of many, or chunks of calls that left most of a block empty,
    would soon have more memory in use than there are data. Such chunks get columns of their own.
    """

    def __init__(self) -> None:
        self._calls: deque[_Call] = deque()

    def add(self, chunks: Iterable[MultiAgentEpisode], blocks: Iterable[Block]) -> None:
        """These were returned by a call that has filled these blocks."""
        self._calls.append(_Call(chunks, blocks))

    def compact(self) -> None:
        """Look at a call or two, the one that was looked at longest ago first: so each is asked now and then, however
        many there are."""
        for _ in range(min(2, len(self._calls)) if len(self._calls) > PATIENCE else 0):
            call = self._calls.popleft()
            if call.is_worth_its_memory():
                self._calls.append(call)
            else:
                call.compact()


class _Call:
    """What a call has returned, as far as it is still there."""

    def __init__(self, chunks: Iterable[MultiAgentEpisode], blocks: Iterable[Block]):
        self._chunks: list[Any] = without_collection(list, map(ref, chunks))
        self._blocks = [(ref(block.lease), block.n_rows_held, block.readers) for block in blocks]

    def is_worth_its_memory(self) -> bool:
        held = sum(n_rows for lease, n_rows, _ in self._blocks if lease() is not None)
        if not held:
            return False
        used: int = sum(each.n_obs for each in self._readers() if isinstance(each, LaneSource))
        used += sum(chunk.n_unbuilt_rows() for chunk in _alive(self._chunks))
        return used >= ENOUGH * held

    def compact(self) -> None:
        for each in [*_alive(self._chunks), *self._readers()]:
            each.compact()

    def _readers(self) -> list[Any]:
        return [reader for _, _, readers in self._blocks for reader in _alive(readers)]


def _alive(references: list[Any]) -> list[Any]:
    return [thing for reference in list(references) if (thing := reference()) is not None]

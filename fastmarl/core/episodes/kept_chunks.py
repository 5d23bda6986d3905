"""Limits the memory used by chunks of earlier calls that are still referenced."""

from collections import deque
from collections.abc import Iterable
from typing import Any
from weakref import ref

from fastmarl.core.episodes.lane_source import LaneSource
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.native._garbage import without_collection
from fastmarl.core.store.block import ENOUGH, Block

PATIENCE = 4  # number of latest calls that are not checked; equals the number of idle blocks kept


class KeptChunks:
    """Tracks returned chunks and compacts those that waste memory.

    Chunks are views of the blocks that their call filled, and each view keeps an entire block alive. This costs nothing
    if all chunks of a call are dropped together. But a program that keeps a few chunks of many calls, or chunks of
    calls that left most of a block empty, would soon use far more memory than its data needs.
    """

    def __init__(self) -> None:
        self._calls: deque[_Call] = deque()

    def add(self, chunks: Iterable[MultiAgentEpisode], blocks: Iterable[Block]) -> None:
        """Register the chunks that a call returned and the blocks that it filled."""
        self._calls.append(_Call(chunks, blocks))

    def compact(self) -> None:
        """Check up to two calls, least recently checked first, so the cost does not grow with the number of calls."""
        for _ in range(min(2, len(self._calls)) if len(self._calls) > PATIENCE else 0):
            call = self._calls.popleft()
            if call.is_worth_its_memory():
                self._calls.append(call)
            else:
                call.compact()


class _Call:
    """The chunks and agent episodes of a single call that are still referenced."""

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

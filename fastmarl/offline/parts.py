"""Write episodes to the parts of a folder, one part after another."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastmarl.core.batches.agent_episode_table import AgentEpisodeTable
from fastmarl.core.episodes.chunk import ChunkHead
from fastmarl.core.episodes.lazy import in_numbers
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.native._garbage import without_collection
from fastmarl.offline import folder
from fastmarl.offline.chunks import chunk_table
from fastmarl.offline.part import FilePart
from fastmarl.offline.rows import ModuleTable, RowMaker

ENOUGH_BYTES = 1024**3  # uncompressed size of a part; readers hold a whole part in memory


class FileParts:
    """The parts that one writer produces.

    Args:
        path: The folder.
        maker: Converts episodes to rows.
        compression, worker_index: See `ParquetWriter`.
        max_rows: Most agent steps per part.

    Attributes:
        row_bytes: Mean uncompressed size of a row in the last part; 0.0 before the first part.
    """

    def __init__(self, path: Path, maker: RowMaker, compression: str, max_rows: int, worker_index: int):
        self._path, self._maker, self._compression = path, maker, compression
        self._max_rows, self._worker_index = max_rows, worker_index
        self.row_bytes = 0.0
        self._part: FilePart | None = None
        self._number = 0

    def add(self, episodes: list[MultiAgentEpisode], n_rows: list[int]) -> None:
        """Append episodes.

        If an episode can't be written, the part ends before it, complete, and the error is raised.

        Args:
            episodes: The chunks.
            n_rows: Number of agent steps of each.
        """
        for some in self._fitting(episodes, n_rows):
            for chunks, rows in self._tables(some):
                self._append(chunks, rows)

    def _append(self, chunks: Any, rows: list[ModuleTable]) -> None:
        part = self._open()
        part.add(chunks, rows)
        self.row_bytes = part.n_bytes / max(1, part.n_rows)
        if part.n_rows >= self._max_rows or part.n_bytes >= ENOUGH_BYTES:
            self.finish()

    def _tables(self, episodes: list[MultiAgentEpisode]) -> Iterator[tuple[Any, list[ModuleTable]]]:
        """Yield tables (chunks, rows); the caller appends them before it asks for the next ones.

        All episodes become one pair of tables. If one of them can't be written, those before it are yielded one by one.
        """
        try:
            made = self._made(episodes)
        except Exception:
            if len(episodes) == 1:
                self.finish()
                raise
        else:
            yield made
            return
        for episode in episodes:
            yield from self._tables([episode])

    def _made(self, episodes: list[MultiAgentEpisode]) -> tuple[Any, list[ModuleTable]]:
        first_chunk = 0 if self._part is None else self._part.n_chunks
        heads: list[ChunkHead | None] = without_collection(list, map(MultiAgentEpisode.head, episodes))
        rows = self._maker.rows(AgentEpisodeTable(in_numbers(episodes)), episodes, heads, first_chunk)
        return chunk_table(episodes, heads, keeps_infos=self._maker.keeps_infos), rows

    def finish(self) -> None:
        """Complete the open part, if there is one."""
        part, self._part = self._part, None
        if part is not None:
            try:
                part.finish()
            except BaseException:
                part.abandon()
                raise

    def abandon(self) -> None:
        if self._part is not None:
            self._part.abandon()
            self._part = None

    def _open(self) -> FilePart:
        if self._part is None:
            name, self._number = folder.claim(self._path, self._worker_index, self._number)
            self._number += 1
            self._part = FilePart(self._path, name, self._compression)
        return self._part

    def _fitting(self, episodes: list[MultiAgentEpisode], n_rows: list[int]) -> Iterator[list[MultiAgentEpisode]]:
        """Yield the episodes in order, each time as many as fit into the part that is open by then."""
        begin = 0
        while begin < len(episodes):
            used = 0 if self._part is None else self._part.n_rows
            end, total = begin + 1, used + n_rows[begin]
            if used and total > self._max_rows:
                self.finish()
                continue
            while end < len(episodes) and total + n_rows[end] <= self._max_rows:
                total += n_rows[end]
                end += 1
            yield episodes[begin:end]
            begin = end

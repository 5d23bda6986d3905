"""Parts of a directory, written one at a time to files with temporary names until the part is complete."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastmarl.core.batches.agent_episode_table import AgentEpisodeTable
from fastmarl.core.episodes.chunk import ChunkHead
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.unbuilt import in_numbers
from fastmarl.core.native._garbage import without_collection
from fastmarl.core.spaces.columns import Columns
from fastmarl.offline import chunks, folder
from fastmarl.offline.arrow import load
from fastmarl.offline.chunks import chunk_table
from fastmarl.offline.folder import hidden
from fastmarl.offline.form import ENV_T, IDS, T, TableForm
from fastmarl.offline.rows import ModuleTable, RowMaker

COUNTED = (T, ENV_T)  # columns that increase by one from row to row


class GrowingFile:
    """A Parquet file being written under a temporary name.

    Attributes:
        n_rows: Number of rows written.
    """

    def __init__(self, path: Path, schema: Any, compression: str):
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        pa = load()
        repeated = [
            field.name
            for field in schema
            if field.name in (*IDS, chunks.AGENT_IDS) or (pa.types.is_integer(field.type) and field.name not in COUNTED)
        ]
        looked_for = [*IDS, T, ENV_T, Columns.REWARDS, chunks.EPISODE]
        try:
            self._writer = load("pyarrow.parquet").ParquetWriter(
                hidden(path),
                schema,
                compression=compression,
                compression_level=1 if compression == "zstd" else None,
                use_dictionary=repeated,
                column_encoding={field.name: "DELTA_BINARY_PACKED" for field in schema if field.name in COUNTED},
                memory_pool=pa.system_memory_pool(),  # keeps memory for the next row group; other pools return it
                write_statistics=[field.name for field in schema if field.name in looked_for],
            )
        except BaseException:  # the file may already exist
            with suppress(OSError):
                hidden(path).unlink()
            raise
        self.n_rows = 0

    def add(self, table: Any) -> int:
        """Write a row group and return the uncompressed size of the table in bytes."""
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.n_rows += table.num_rows
        return int(table.nbytes)

    def finish(self) -> tuple[int, int]:
        """Write the footer, keeping the temporary name, and return the size and checksum of the file."""
        self._writer.close()
        path = hidden(self._path)
        return path.stat().st_size, folder.checksum_of(path)

    def rename(self) -> None:
        hidden(self._path).replace(self._path)

    def abandon(self) -> None:
        """Remove the file in any state, under either name."""
        with suppress(Exception):
            self._writer.close()
        for path in (hidden(self._path), self._path):
            with suppress(OSError):
                path.unlink()


class FilePart:
    """All files of a part: episode chunks, and the agent steps of each module.

    Attributes:
        n_rows: Number of agent steps.
        n_chunks: Number of chunks.
        n_bytes: Uncompressed size of the tables.
    """

    def __init__(self, path: Path, name: str, compression: str):
        self._path, self._name, self._compression = path, name, compression
        self._files: dict[tuple[str, str | None, TableForm | None], tuple[int, GrowingFile]] = {}
        self.n_rows = self.n_chunks = self.n_bytes = 0

    def add(self, chunk_table: Any, rows: list[ModuleTable]) -> None:
        for module_id, form, table, lookback in rows:
            self._add(folder.DATA, module_id, form, table)
            self.n_rows += table.num_rows
            if lookback is not None:
                self._add(folder.LOOKBACK, module_id, form, lookback)
        self._add(folder.EPISODES, None, None, chunk_table)
        self.n_chunks += chunk_table.num_rows

    def finish(self) -> None:
        """Finish all files, which completes the part."""
        files = []
        for (kind, module_id, _), (number, file) in self._files.items():
            n_bytes, checksum = file.finish()
            files.append(folder.PartFile(kind, module_id, number, file.n_rows, n_bytes, checksum))
        for _, file in self._files.values():
            file.rename()
        forms = [(module_id, form) for _, module_id, form in self._files if module_id is not None and form is not None]
        folder.seal(self._path, self._name, files, forms)

    def abandon(self) -> None:
        for _, file in self._files.values():
            file.abandon()
        folder.abandon(self._path, self._name)

    def _add(self, kind: str, module_id: str | None, form: TableForm | None, table: Any) -> None:
        key = kind, module_id, form
        if key not in self._files:
            number = 1 + sum(each[:2] == key[:2] for each in self._files)
            path = folder.file_path(self._path, self._name, kind, module_id, number)
            self._files[key] = number, GrowingFile(path, table.schema, self._compression)
        self.n_bytes += self._files[key][1].add(table)


ENOUGH_BYTES = 1024**3  # uncompressed size of a part; readers load an entire part into memory


class FileParts:
    """Writes episodes to consecutive parts.

    Args:
        path: The directory.
        maker: Converter of episodes to rows.
        compression, worker_index: See `ParquetWriter`.
        max_rows: Maximum number of agent steps per part.

    Attributes:
        row_bytes: Mean uncompressed size of a row in the last part, or 0.0 before the first part.
    """

    def __init__(self, path: Path, maker: RowMaker, compression: str, max_rows: int, worker_index: int):
        self._path, self._maker, self._compression = path, maker, compression
        self._max_rows, self._worker_index = max_rows, worker_index
        self.row_bytes = 0.0
        self._part: FilePart | None = None
        self._number = 0

    def add(self, episodes: list[MultiAgentEpisode], n_rows: list[int]) -> None:
        """Append episodes.

        If an episode cannot be written, the part is completed with the episodes before it, and the error is raised.

        Args:
            episodes: The chunks.
            n_rows: Number of agent steps of each episode.
        """
        for some in self._fitting(episodes, n_rows):
            for kept, rows in self._tables(some):
                self._append(kept, rows)

    def _append(self, chunks: Any, rows: list[ModuleTable]) -> None:
        part = self._open()
        part.add(chunks, rows)
        self.row_bytes = part.n_bytes / max(1, part.n_rows)
        if part.n_rows >= self._max_rows or part.n_bytes >= ENOUGH_BYTES:
            self.finish()

    def _tables(self, episodes: list[MultiAgentEpisode]) -> Iterator[tuple[Any, list[ModuleTable]]]:
        """Yield tables (chunks, rows), which the caller must append before requesting the next ones.

        Normally, all episodes are in a single pair of tables. If an episode cannot be written, the episodes before it
        are yielded one by one.
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
        """Complete the open part, if any."""
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
        """Yield the episodes in order, in lists that fit in the open part."""
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

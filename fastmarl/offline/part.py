"""The files of one part while they are being written."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from fastmarl.core.spaces.columns import Columns
from fastmarl.offline import chunks, folder
from fastmarl.offline.arrow import load
from fastmarl.offline.folder import hidden
from fastmarl.offline.form import ENV_T, IDS, T, TableForm
from fastmarl.offline.rows import ModuleTable

COUNTED = (T, ENV_T)  # columns that increase by one from row to row


class GrowingFile:
    """A Parquet file under a temporary name.

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
        """Write a row group. Returns the uncompressed size of the table in bytes."""
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.n_rows += table.num_rows
        return int(table.nbytes)

    def finish(self) -> tuple[int, int]:
        """Write the footer. Returns the size and checksum of the file, which keeps its temporary name."""
        self._writer.close()
        path = hidden(self._path)
        return path.stat().st_size, folder.checksum_of(path)

    def rename(self) -> None:
        hidden(self._path).replace(self._path)

    def abandon(self) -> None:
        """Remove the file, whatever its state and name."""
        with suppress(Exception):
            self._writer.close()
        for path in (hidden(self._path), self._path):
            with suppress(OSError):
                path.unlink()


class FilePart:
    """All files of one part: chunks of episodes, and the steps of their agents by module.

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
        """Finish all files; the part is complete afterwards."""
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

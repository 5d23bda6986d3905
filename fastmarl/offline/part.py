"""The files of one part while they are being written."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from fastmarl.core.columns import Columns
from fastmarl.offline import chunks, folder
from fastmarl.offline.arrow import load
from fastmarl.offline.checksums import RowGroupChecksums
from fastmarl.offline.form import ENV_T, IDS, T, TableForm
from fastmarl.offline.rows import ModuleTable

# A row group is written when it has so many: what the thread adds at once, full or almost, is one.
GROUP_ROWS, GROUP_BYTES = 32_768, 16 * 1024 * 1024
COUNTED = (T, ENV_T)  # columns that go up by one from row to row


class GrowingFile:
    """A Parquet file under a temporary name. Rows are kept until there are enough of them for a row group."""

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
        self._writer = load("pyarrow.parquet").ParquetWriter(
            folder.hidden(path),
            schema,
            compression=compression,
            compression_level=1 if compression == "zstd" else None,
            use_dictionary=repeated,
            column_encoding={field.name: "DELTA_BINARY_PACKED" for field in schema if field.name in COUNTED},
            memory_pool=pa.system_memory_pool(),  # keeps memory for the next row group; others give it back
            write_statistics=[field.name for field in schema if field.name in looked_for],
        )
        self._checksums = RowGroupChecksums(folder.hidden(path))
        self._tables: list[Any] = []
        self._n_rows = self._n_bytes = 0

    def add(self, table: Any) -> int:
        """Returns its bytes, before compression."""
        n_bytes: int = table.nbytes
        self._tables.append(table)
        self._n_rows += table.num_rows
        self._n_bytes += n_bytes
        if self._n_rows >= GROUP_ROWS or self._n_bytes >= GROUP_BYTES:
            self._write()
        return n_bytes

    def finish(self) -> None:
        """Write what is left, the checksums and the footer; the name is still the temporary one."""
        self._write()
        self._writer.close()
        self._checksums.finish()

    def rename(self) -> None:
        folder.hidden(self._path).replace(self._path)

    def abandon(self) -> None:
        """Remove the file, whatever state and name it has."""
        self._tables = []
        with suppress(Exception):
            self._writer.close()
        for path in (folder.hidden(self._path), self._path):
            with suppress(OSError):
                path.unlink()

    def _write(self) -> None:
        if not self._tables:
            return
        table = self._tables[0]
        if len(self._tables) > 1:
            table = load().concat_tables(self._tables).unify_dictionaries()
        self._tables, self._n_rows, self._n_bytes = [], 0, 0
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._checksums.add_group()


class FilePart:
    """Files of one name: chunks of episodes, and their agents' steps by module.

    Attributes:
        n_rows: steps in it.
        n_chunks: chunks in it.
        n_bytes: of its tables, before compression.
    """

    def __init__(self, path: Path, name: str, compression: str, *, next_obs: bool):
        self._path, self._name, self._compression, self._next_obs = path, name, compression, next_obs
        self._chunks = GrowingFile(self._file(folder.EPISODES), chunks.schema(), compression)
        self._files: dict[tuple[str, str, TableForm], GrowingFile] = {}
        self._n_forms: dict[tuple[str, str], int] = {}
        self.n_rows = self.n_chunks = self.n_bytes = 0

    def add(self, chunk_table: Any, rows: list[ModuleTable]) -> None:
        for module_id, form, table, lookback in rows:
            self.n_bytes += self._of(folder.DATA, module_id, form).add(table)
            self.n_rows += table.num_rows
            if lookback is not None:
                self.n_bytes += self._of(folder.LOOKBACK, module_id, form).add(lookback)
        self.n_bytes += self._chunks.add(chunk_table)
        self.n_chunks += chunk_table.num_rows

    def finish(self) -> None:
        """From now on the part is whole."""
        files = [*self._files.values(), self._chunks]
        for file in files:
            file.finish()
        for file in files:
            file.rename()

    def abandon(self) -> None:
        for file in (*self._files.values(), self._chunks):
            file.abandon()

    def _of(self, kind: str, module_id: str, form: TableForm) -> GrowingFile:
        key = kind, module_id, form
        if key not in self._files:
            n = self._n_forms[kind, module_id] = self._n_forms.get((kind, module_id), 0) + 1
            path = self._file(f"{kind}/{folder.module_folder(module_id)}", "" if n == 1 else f"-form{n}")
            self._files[key] = GrowingFile(path, form.schema(next_obs=self._next_obs), self._compression)
        return self._files[key]

    def _file(self, where: str, suffix: str = "") -> Path:
        return self._path / where / f"{self._name}{suffix}{folder.SUFFIX}"

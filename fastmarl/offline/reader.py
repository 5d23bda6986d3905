"""Reads episodes and batches from Parquet files."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastmarl.core.batches.flat import Batch
from fastmarl.core.columns import Columns
from fastmarl.core.config import check_integer
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.sources import joined
from fastmarl.core.errors import ConfigError, OfflineError
from fastmarl.core.public import public
from fastmarl.core.spaces.structs import map_struct
from fastmarl.offline import checksums, folder
from fastmarl.offline.arrow import load
from fastmarl.offline.chunks import AGENT_STEPS, LOOKBACK_STEPS, chunk_states, schema
from fastmarl.offline.columns_of_file import FileColumns
from fastmarl.offline.episodes_of_part import episodes_of
from fastmarl.offline.form import CHUNK


@public("fastmarl.offline")
class ParquetReader:
    """Reads a folder that a `ParquetWriter` has written, or is writing: the parts that are whole at the time.

    Args:
        path: the folder.

    Attributes:
        info: what `meta/info.json` says: "modules" has the columns by module.

    Raises:
        ConfigError: pyarrow is not installed.
        OfflineError: this is no such folder, or of a newer version.
    """

    def __init__(self, path: str | os.PathLike[str]):
        load("pyarrow.parquet")
        self.path = Path(path).absolute()
        self.info = folder.read_info(self.path)

    @property
    def module_ids(self) -> list[str]:
        """Of the modules that have steps here."""
        return folder.modules_of(self.path)

    def check_module(self, module_id: str) -> None:
        """Raises ConfigError if there are no steps of this module."""
        if module_id not in self.module_ids:
            raise ConfigError(f"{self.path} has no steps of module {module_id!r}, only of {self.module_ids}")

    def num_rows(self, module_id: str | None = None) -> int:
        """Steps of agents; None: of all modules.

        Raises:
            OfflineError: a file is damaged.
        """
        return sum(
            _num_rows(file)
            for name in folder.parts_of(self.path)
            for _, file in folder.files_of(self.path, folder.DATA, name, module_id)
        )

    def iter_episodes(
        self, *, batch_size: int = 64, shuffle_files: bool = False, seed: int | None = None
    ) -> Iterator[list[MultiAgentEpisode]]:
        """The chunks that were written, bit-identical, in lists of `batch_size` (the last one may be shorter).

        They have no spaces and no mapping function. Chunks of one episode are apart, as `sample()` has returned them;
        `concat_episode()` joins them.

        Args:
            shuffle_files: whether the parts come in random order; in each, chunks are in order.
            seed: of that order.

        Raises:
            OfflineError: a file is damaged, missing, or of another part.
        """
        check_integer("batch_size", batch_size, least=1)
        batch_size = int(batch_size)
        waiting: list[MultiAgentEpisode] = []
        for name in self._parts(shuffle_files, seed):
            waiting += self._episodes(name)
            while len(waiting) >= batch_size:
                yield waiting[:batch_size]
                del waiting[:batch_size]
        if waiting:
            yield waiting

    def iter_batches(
        self,
        *,
        module_id: str,
        batch_size: int,
        next_obs: bool = False,
        shuffle: bool = False,
        seed: int | None = None,
        drop_last: bool = False,
    ) -> Iterator[Batch]:
        """A module's steps in batches of `batch_size`: "obs", "actions" and the outputs, nested as they were;
        "rewards", "terminateds", "truncateds", "t", "env_t"; and "eps_id" (of the episode) and "agent_id", as they
        were, object [n].

        Steps are in the order of the files, trajectory after trajectory. A batch has steps of one form: where a module
        has recorded other outputs from some time on, the batch before is shorter. Recurrent states and infos are
        there as recorded: infos as texts, in JSON.

        Args:
            next_obs: add "new_obs", the observation after each step.
            shuffle: whether files, and the steps in each file, come in random order.
            seed: of that order.
            drop_last: leave out batches that are shorter.

        Raises:
            ConfigError: there is no such module.
            OfflineError: a file is damaged or missing.
        """
        check_integer("batch_size", batch_size, least=1)
        batch_size = int(batch_size)
        self.check_module(module_id)
        rng = np.random.default_rng(seed)
        left: Batch | None = None
        form = None
        for name in self._parts(shuffle, seed):
            self._check_files(name)
            for _, file in folder.files_of(self.path, folder.DATA, name, module_id):
                columns = _read(file)
                if left is not None and form != columns.form:
                    if not drop_last:
                        yield left
                    left = None
                form = columns.form
                order = rng.permutation(columns.n_rows) if shuffle else np.arange(columns.n_rows)
                batch = columns.batch(order, next_obs=next_obs)
                if left is not None:
                    batch = _joined(left, batch)
                n = len(batch[Columns.REWARDS])
                for begin in range(0, n - batch_size + 1, batch_size):
                    yield _cut(batch, slice(begin, begin + batch_size))
                rest = n % batch_size
                left = _cut(batch, slice(n - rest, n)) if rest else None
        if left is not None and not drop_last:
            yield left

    def _parts(self, shuffle: bool, seed: int | None) -> list[str]:
        names = folder.parts_of(self.path)
        if shuffle:
            np.random.default_rng(seed).shuffle(names)
        return names

    def _episodes(self, name: str) -> list[MultiAgentEpisode]:
        chunks = self._chunks(name, schema().names)
        files = []
        for kind, column in ((folder.DATA, AGENT_STEPS), (folder.LOOKBACK, LOOKBACK_STEPS)):
            of_kind = [(module_id, _read(file)) for module_id, file in folder.files_of(self.path, kind, name)]
            n_steps = chunks.column(column).to_numpy()
            if not _have_steps([columns for _, columns in of_kind], n_steps):
                raise self._foreign_files(name, kind, n_steps.sum())
            files.append(of_kind)
        return episodes_of(chunk_states(chunks), *files)

    def _check_files(self, name: str) -> None:
        """Raises OfflineError if a part does not have as many steps as were written, in files of all modules."""
        n_steps = self._chunks(name, [AGENT_STEPS]).column(AGENT_STEPS).to_numpy().sum()
        if n_steps != sum(_num_rows(file) for _, file in folder.files_of(self.path, folder.DATA, name)):
            raise self._foreign_files(name, folder.DATA, n_steps)

    def _chunks(self, name: str, columns: list[str]) -> Any:
        """These columns of a part's chunks."""
        return _read_table(self.path / folder.EPISODES / f"{name}{folder.SUFFIX}", columns)

    def _foreign_files(self, name: str, kind: str, n_steps: int) -> OfflineError:
        return OfflineError(
            f"the files {name} in {self.path / kind} are not those that were written with {folder.EPISODES}/{name}, "
            f"which had {n_steps} steps; is one missing?"
        )


def _have_steps(files: list[FileColumns], n_steps: np.ndarray) -> bool:
    """Whether these files have so many rows of each chunk of their part."""
    chunks = np.concatenate([np.empty(0, np.int64), *(columns.numbers(CHUNK) for columns in files)])
    return np.array_equal(np.bincount(chunks, minlength=len(n_steps)), n_steps)


def _read(file: Path) -> FileColumns:
    return FileColumns(_read_table(file))


def _read_table(file: Path, columns: list[str] | None = None) -> Any:
    """Raises OfflineError if it can't be read, or is damaged."""
    pa, parquet = load(), load("pyarrow.parquet")
    try:
        checksums.check(file)
        with parquet.ParquetFile(file) as opened:
            return opened.read(columns)
    except (OSError, pa.ArrowException) as error:
        raise _cant_read(file, error) from error


def _num_rows(file: Path) -> int:
    """Raises OfflineError if it can't be read, or its footer is damaged."""
    pa, parquet = load(), load("pyarrow.parquet")
    try:
        return parquet.read_metadata(pa.BufferReader(checksums.footer_of(file))).num_rows
    except (OSError, pa.ArrowException) as error:
        raise _cant_read(file, error) from error


def _cant_read(file: Path, error: Exception) -> OfflineError:
    return OfflineError(f"can't read {file}: {error}; is it damaged, or copied in part?")


def _cut(batch: Batch, rows: slice) -> Batch:
    """Copies: they may be written to, and hold no more than their own memory."""
    return {name: map_struct(lambda leaf: leaf[rows].copy(), column) for name, column in batch.items()}


def _joined(one: Batch, other: Batch) -> Batch:
    return {name: joined([one[name], other[name]]) for name in one}

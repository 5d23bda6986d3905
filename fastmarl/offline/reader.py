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
from fastmarl.offline import folder
from fastmarl.offline.arrow import load
from fastmarl.offline.chunks import chunk_states
from fastmarl.offline.columns_of_file import FileColumns
from fastmarl.offline.episodes_of_part import episodes_of
from fastmarl.offline.folder import Part, PartFile


@public("fastmarl.offline")
class ParquetReader:
    """Reads a folder that a `ParquetWriter` has written, or is writing: the parts that are whole at the time.

    Args:
        path: the folder.

    Raises:
        ConfigError: pyarrow is not installed.
        OfflineError: this is no such folder, or of another version.
    """

    def __init__(self, path: str | os.PathLike[str]):
        load("pyarrow.parquet")
        self.path = Path(path).absolute()
        _ = self.info

    @property
    def info(self) -> dict[str, Any]:
        """Return the contents of the folder: "modules" has dtype and shape of the columns by module.

        Each access reads the descriptions of all parts that are whole by then; so does `module_ids`.
        """
        modules: dict[str, dict[str, Any]] = {}
        for part in folder.parts_of(self.path):
            for module_id, columns in part.modules.items():
                modules.setdefault(module_id, {}).update(columns)
        return {"modules": modules}

    @property
    def module_ids(self) -> list[str]:
        """Return the ids of the modules that have steps here, sorted."""
        return sorted(self.info["modules"])

    def check_module(self, module_id: str) -> None:
        """Raises ConfigError if there are no steps of this module."""
        if module_id not in (module_ids := self.module_ids):
            raise ConfigError(f"{self.path} has no steps of module {module_id!r}, only of {module_ids}")

    def num_rows(self, module_id: str | None = None) -> int:
        """Steps of agents; None: of all modules.

        Raises:
            OfflineError: a file is missing, or copied in part.
        """
        return sum(file.n_rows for part in self._parts() for file in part.of(folder.DATA, module_id))

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
            OfflineError: a file is damaged or missing.
        """
        check_integer("batch_size", batch_size, least=1)
        batch_size = int(batch_size)
        waiting: list[MultiAgentEpisode] = []
        for part in self._parts(shuffle_files, seed):
            data, lookback = (
                [(str(file.module_id), FileColumns(_read_table(part, file))) for file in part.of(kind)]
                for kind in (folder.DATA, folder.LOOKBACK)
            )
            states = [state for file in part.of(folder.EPISODES) for state in chunk_states(_read_table(part, file))]
            waiting += episodes_of(states, data, lookback)
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
        for part in self._parts(shuffle, seed):
            for file in part.of(folder.DATA, module_id):
                columns = FileColumns(_read_table(part, file))
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

    def _parts(self, shuffle: bool = False, seed: int | None = None) -> Iterator[Part]:
        """Raises OfflineError at one that lacks a file, of whichever module."""
        parts = list(folder.parts_of(self.path))
        if shuffle:
            np.random.default_rng(seed).shuffle(parts)
        for part in parts:
            part.check_is_complete()
            yield part


def _read_table(part: Part, file: PartFile) -> Any:
    """Raises OfflineError if it can't be read, or is damaged."""
    path = part.check(file)
    try:
        with load("pyarrow.parquet").ParquetFile(path) as opened:
            return opened.read()
    except (OSError, load().ArrowException) as error:
        raise OfflineError(f"can't read {path}: {error}; is it damaged, or copied in part?") from error


def _cut(batch: Batch, rows: slice) -> Batch:
    """Copies: they may be written to, and hold no more than their own memory."""
    return {name: map_struct(lambda leaf: leaf[rows].copy(), column) for name, column in batch.items()}


def _joined(one: Batch, other: Batch) -> Batch:
    return {name: joined([one[name], other[name]]) for name in one}

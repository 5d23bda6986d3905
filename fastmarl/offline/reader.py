"""A reader of episodes and batches in Parquet files."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastmarl.core.batches.flat import Batch
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.sources import joined
from fastmarl.core.errors import ConfigError, OfflineError
from fastmarl.core.errors.checks import check_integer
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import map_struct
from fastmarl.offline import folder
from fastmarl.offline.arrow import load
from fastmarl.offline.chunks import chunk_states
from fastmarl.offline.columns_of_file import FileColumns
from fastmarl.offline.episodes_of_part import episodes_of
from fastmarl.offline.folder import Part, PartFile


@public("fastmarl.offline")
class ParquetReader:
    """Reads the complete parts of a directory that a `ParquetWriter` has written or is still writing.

    Args:
        path: The directory.

    Raises:
        ConfigError: If pyarrow is not installed.
        OfflineError: If the directory has no recorded episodes, or has them in another version of the format.
    """

    def __init__(self, path: str | os.PathLike[str]):
        load("pyarrow.parquet")
        self.path = Path(path).absolute()
        _ = self.info

    @property
    def info(self) -> dict[str, Any]:
        """Dict with "modules": module id -> column name -> dtype and shape.

        Each access to this or `module_ids` reads the descriptions of all currently complete parts.
        """
        modules: dict[str, dict[str, Any]] = {}
        for part in folder.parts_of(self.path):
            for module_id, columns in part.modules.items():
                modules.setdefault(module_id, {}).update(columns)
        return {"modules": modules}

    @property
    def module_ids(self) -> list[str]:
        """The sorted ids of all recorded modules."""
        return sorted(self.info["modules"])

    def check_module(self, module_id: str) -> None:
        """Check that the directory has steps of the module `module_id`.

        Raises:
            ConfigError: If it has no such steps.
        """
        if module_id not in (module_ids := self.module_ids):
            raise ConfigError(f"{self.path} has no steps of module {module_id!r}, only of {module_ids}")

    def num_rows(self, module_id: str | None = None) -> int:
        """Return the number of agent steps of the module `module_id`, or of all modules if it is None.

        Raises:
            OfflineError: If a file is missing or was only partly copied.
        """
        return sum(file.n_rows for part in self._parts() for file in part.of(folder.DATA, module_id))

    def iter_episodes(
        self, *, batch_size: int = 64, shuffle_files: bool = False, seed: int | None = None
    ) -> Iterator[list[MultiAgentEpisode]]:
        """Yield the recorded chunks, bit-identical, in lists of `batch_size`, the last of which may be shorter.

        The chunks have no spaces and no mapping function. Like the chunks returned by `sample()`, chunks of an episode
        are not joined; use `concat_episode()` for that.

        Args:
            batch_size: Chunks per list.
            shuffle_files: Whether to read the parts in random order; chunks within a part remain in order.
            seed: Seed of that order.

        Raises:
            OfflineError: If a file is damaged or missing.
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
        """Yield the steps of a module in batches of `batch_size` rows.

        A batch has "obs", "actions" and the module outputs, with their original nesting; "rewards" (float64),
        "terminateds" and "truncateds" (bool), "t" and "env_t" (int64); and the original "eps_id" (of the episode) and
        "agent_id" as object arrays [n].

        Steps are in file order, one trajectory after another. All steps of a batch have the same columns: if the
        module outputs changed during recording, the batch before the change is shorter. Recurrent states and infos are
        included if recorded; infos are JSON strings.

        Args:
            module_id: Id of the module.
            batch_size: Rows per batch.
            next_obs: Add "new_obs", the observation after each step.
            shuffle: Whether to read the files, and the steps within each file, in random order.
            seed: Seed of that order.
            drop_last: Drop shorter batches.

        Raises:
            ConfigError: If the module was not recorded.
            OfflineError: If a file is damaged or missing.
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
        """Yield the parts, checking first that no file of the part is missing.

        Raises:
            OfflineError: If a part has missing files.
        """
        parts = list(folder.parts_of(self.path))
        if shuffle:
            np.random.default_rng(seed).shuffle(parts)
        for part in parts:
            part.check_is_complete()
            yield part


def _read_table(part: Part, file: PartFile) -> Any:
    """Read a file of a part as an Arrow table.

    Raises:
        OfflineError: If the file cannot be read or is damaged.
    """
    path = part.check(file)
    try:
        with load("pyarrow.parquet").ParquetFile(path) as opened:
            return opened.read()
    except (OSError, load().ArrowException) as error:
        raise OfflineError(f"can't read {path}: {error}; is it damaged or partly copied?") from error


def _cut(batch: Batch, rows: slice) -> Batch:
    """Copy these rows of a batch, so that they are writeable and do not keep the entire batch in memory."""
    return {name: map_struct(lambda leaf: leaf[rows].copy(), column) for name, column in batch.items()}


def _joined(one: Batch, other: Batch) -> Batch:
    return {name: joined([one[name], other[name]]) for name in one}

"""A reader of batches in files written by the `JsonWriter` of RLlib or fastmarl."""

import glob
import logging
import math
import os
import random
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fastmarl.core.errors import BatchError, ConfigError
from fastmarl.core.objects.public import public
from fastmarl.legacy.batches.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, concat_samples
from fastmarl.legacy.files.interfaces import InputReader, IOContext
from fastmarl.legacy.files.json_format import checksum, checksums_file, checksums_of, from_json

MOST_BAD_LINES = 100  # consecutive
PATTERNS = ("*.json", "*.zip")  # read from a directory

logger = logging.getLogger(__name__)


@public("fastmarl.legacy")
class JsonReader(InputReader):
    """Reads files endlessly in random order, line by line. Lines without a batch are skipped with a warning.

    Args:
        inputs: A directory of *.json and *.zip files, a file, a glob, or a list of files.
        ioctx: IOContext of the worker whose policies use the batches; each worker starts with a different file.

    Attributes:
        files: Paths of the files.
        ioctx: The argument `ioctx`.
        cur_file: Path of the file of the last batch, or None before the first.
        batch_size: Minimum number of env steps in a batch: `train_batch_size` divided among the workers, by default 1.

    Raises:
        ConfigError: If a file does not exist, or no file matches.
    """

    def __init__(
        self, inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], ioctx: IOContext | None = None
    ):
        self.ioctx = ioctx
        self.files = _files_of(inputs)
        config = None if ioctx is None else ioctx.config
        size, n_workers = (getattr(config, name, None) or 1 for name in ("train_batch_size", "num_env_runners"))
        self.batch_size = math.ceil(size / n_workers)
        seed = None if ioctx is None else getattr(ioctx.config, "seed", None)
        self.cur_file: Path | None = None
        self._random = random.Random(None if ioctx is None or seed is None else f"{seed} {ioctx.worker_index}")
        self._lines = self._endless()

    @property
    def policy_map(self) -> Any:
        """Policies of the worker, or None without a worker."""
        return None if self.ioctx is None or self.ioctx.worker is None else self.ioctx.worker.policy_map

    @property
    def default_policy(self) -> Any:
        """Policy "default_policy" of the worker, or None if it does not exist."""
        return None if self.policy_map is None else self.policy_map.get(DEFAULT_POLICY_ID)

    def next(self) -> Any:
        """Return the next SampleBatch or MultiAgentBatch, joining lines until it has `batch_size` env steps.

        Raises:
            BatchError: If 100 consecutive lines contain no batch, or the worker does not have the policies of a batch.
        """
        batches = [self._next_batch()]
        while sum(batch.count for batch in batches) < self.batch_size:
            batches.append(self._next_batch())
        return batches[0] if len(batches) == 1 else concat_samples(batches)

    def _next_batch(self) -> Any:
        for _ in range(MOST_BAD_LINES):
            batch = self._parsed(*self._next_line())
            if batch is not None:
                return self._postprocessed(batch)
        raise BatchError(f"{MOST_BAD_LINES} lines of {self.files} contain no batch; see the logged warnings")

    def read_all_files(self) -> Iterator[Any]:
        """Yield the batches of all files once, in file order."""
        for path in self.files:
            for number, line in lines_of(path):
                batch = self._parsed(path, number, line)
                if batch is not None:
                    yield batch

    def _next_line(self) -> tuple[Path, int, bytes]:
        line = next(self._lines, None)
        if line is None:  # an error or an interrupt stopped the generator
            self._lines = self._endless()
            line = next(self._lines)
        self.cur_file = line[0]
        return line

    def _endless(self) -> Iterator[tuple[Path, int, bytes]]:
        """Yield (file, line number, line) endlessly; an empty file yields an empty line, which counts as bad."""
        path = self._first_file()
        while True:
            number = 0
            for number, line in lines_of(path):
                yield path, number, line
            if not number:
                yield path, 0, b""
            path = self._random.choice(self.files)

    def _first_file(self) -> Path:
        if self.ioctx is None or self.ioctx.worker is None:
            return self.files[0]
        share = self.ioctx.worker_index / (self.ioctx.worker.num_workers or 1)
        return self.files[round((len(self.files) - 1) * min(share, 1.0))]

    def _parsed(self, path: Path, number: int, line: bytes) -> Any:
        if not line.strip():
            return None
        try:
            batch = from_json(line.decode(), None if self.ioctx is None else self.ioctx.spaces())
        except Exception as error:  # a broken line may cause any error
            logger.warning("%s, line %d contains no batch: %s: %s", path, number, type(error).__name__, error)
            return None
        self._check_policies(path, number, batch)
        return batch

    def _check_policies(self, path: Path, number: int, batch: Any) -> None:
        if self.policy_map is None:
            return
        here = list(self.policy_map)
        if isinstance(batch, MultiAgentBatch):
            if unknown := [policy_id for policy_id in batch.policy_batches if policy_id not in here]:
                raise BatchError(f"{path}, line {number}: unknown policies {unknown}; the worker has {here}")
        elif len(here) > 1:
            raise BatchError(f"{path}, line {number}: expected a MultiAgentBatch, as the worker has policies {here}")

    def _postprocessed(self, batch: Any) -> Any:
        """If `postprocess_inputs` is set, apply `postprocess_trajectory()` of the policy to each episode of a batch."""
        if self.ioctx is None or self.policy_map is None or not self.ioctx.config.postprocess_inputs:
            return batch
        policies = self.policy_map
        if len(policies) > 1:
            raise BatchError("postprocess_inputs=True needs a single policy, because files do not record which steps "
                             "of several policies belong together")  # fmt: skip
        [(policy_id, policy)] = policies.items()
        of_policy = batch.policy_batches[policy_id] if isinstance(batch, MultiAgentBatch) else batch
        done = concat_samples([policy.postprocess_trajectory(part) for part in of_policy.split_by_episode()])
        return MultiAgentBatch({policy_id: done}, batch.count) if isinstance(batch, MultiAgentBatch) else done


def _files_of(inputs: Any) -> list[Path]:
    if isinstance(inputs, str | os.PathLike):
        pattern = os.path.expanduser(os.fspath(inputs))
        patterns = (
            [os.path.join(glob.escape(pattern), each) for each in PATTERNS] if os.path.isdir(pattern) else [pattern]
        )
        found = sorted(Path(name) for each in patterns for name in glob.glob(each))
    elif isinstance(inputs, Sequence):
        found = [Path(path).expanduser() for path in inputs]
    else:
        raise ConfigError(f"expected a file, a folder, a glob or a list of files, got {inputs!r}")
    missing = [str(path) for path in found if not path.is_file()]
    if missing or not found:
        raise ConfigError(f"found no files {missing or inputs!r}; to read from other storage, pass a custom reader: "
                          f"input_=lambda io_context: ...")  # fmt: skip
    return found


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line) for each line of a file, or of all files in a zip until one can't be read."""
    if path.suffix != ".zip":
        yield from _checked_lines(path)
        return
    number = 0
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    with archive.open(name) as packed:
                        for line in packed:
                            number += 1
                            yield number, line
        except Exception as error:  # damage may cause any error
            logger.warning("%s can't be read after line %d: %s: %s", path, number, type(error).__name__, error)


def _checked_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line), replacing a line whose checksum does not match with an empty one."""
    checksums = checksums_of(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number <= len(checksums) and checksum(line) != checksums[number - 1]:
                logger.warning("%s, line %d is damaged: its checksum does not match %s; if the line was changed on "
                               "purpose, remove that file", path, number, checksums_file(path))  # fmt: skip
                line = b""
            yield number, line

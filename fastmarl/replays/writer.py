"""A writer of action records, which adds a block for each call of `sample()`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from fastmarl.core.checkpoint.sealed_json import write_sealed
from fastmarl.core.connectors.env_actions import EnvActions
from fastmarl.core.episodes.log import EpisodeLog
from fastmarl.core.errors import RecordingError
from fastmarl.replays.blocks import encoded
from fastmarl.replays.fragment import LISTED, Fragment, fragment_of

MOST_FILES = 100_000  # per worker_index and incarnation in a directory


class ActionWriter:
    """Writes a single file in a directory that may be shared by several runners.

    Every `write()` immediately passes a single block to the OS, so that only the running call is lost if the
    process is killed. A block that could not be written, or whose writing was interrupted, is kept for the next one.

    Args:
        folder: Directory, which is created if it is missing.
        meta: Description of the runner as JSON data; see `fastmarl.replays.meta`.
        late_rewards: True if rewards may arrive after the end of an agent.

    Attributes:
        path: Path of the file with the actions.
        meta: Description of the run, which is also in the JSON file next to the actions.

    Raises:
        RecordingError: If the directory is not writable.
    """

    def __init__(self, folder: str | os.PathLike, meta: dict[str, Any], *, late_rewards: bool):
        self.meta = meta
        self._late_rewards = late_rewards
        self._pid = os.getpid()
        try:
            os.makedirs(folder, exist_ok=True)
            stem = f"worker-{meta['worker_index']:03}-{meta['incarnation']:02}"
            self.path, self._file = _new_file(Path(folder), stem)
            try:
                write_sealed(self.path.with_suffix(".json"), meta)
            except BaseException:
                with suppress(OSError):
                    self._file.close()
                    self.path.unlink()
                raise
        except OSError as error:
            raise RecordingError(f"can't write a record of actions to {os.fspath(folder)!r}: "
                                 f"{error.strerror or error}; set record_actions to a writable folder"
                                 ) from error  # fmt: skip
        self._size = 0
        self._unwritten: _Unwritten | None = None
        # Runs when the object is destroyed unless it was closed before.
        self._close = weakref.finalize(self, self._file.close)

    def fragment(
        self, log: EpisodeLog, env_actions: Sequence[EnvActions], *, has_failed: bool = False
    ) -> Fragment | None:
        """Return the record of a call before it ends, without writing it.

        Args:
            log: Episode log of the runner.
            env_actions: Conversion of raw actions to env actions for each module index.
            has_failed: True if the call failed and the running episodes are about to be dropped.
        """
        notes = list(log.sealed)
        if has_failed:
            notes.append(log.notes_of([record.env_index for record in log.store.running()]))
        return fragment_of(log.store, notes, env_actions, late_rewards=self._late_rewards)

    @property
    def has_unwritten(self) -> bool:
        """True if a block is waiting for `write()`."""
        return self._unwritten is not None

    def take(self, fragment: Fragment | None) -> None:
        """Keep a fragment for the next `write()`."""
        if fragment is not None:
            head, body = encoded(fragment.arrays, fragment.words, LISTED)
            self._unwritten = _Unwritten(self._size, head, body)

    def write(self) -> None:
        """Append the waiting block to the file. If this is interrupted, the next call writes the block.

        Raises:
            RecordingError: If writing fails, for example because the disk is full; the file is unchanged.
        """
        if (unwritten := self._unwritten) is None:
            return
        if not self._close.alive or os.getpid() != self._pid:
            raise RecordingError(f"{self.path} is closed, or belongs to the process that created the runner")
        head, body, n_bytes = unwritten.head, unwritten.body, unwritten.n_bytes
        try:
            written = os.pwritev(self._file.fileno(), [head, body], unwritten.offset)
            while written < n_bytes:  # for example at the file size limit
                rest = memoryview(head + body)[written:]
                written += os.pwrite(self._file.fileno(), rest, unwritten.offset + written)
        except BaseException as error:
            os.ftruncate(self._file.fileno(), unwritten.offset)  # readers would stop at a partial block
            if not isinstance(error, OSError):
                raise
            raise RecordingError(f"can't write the actions of a call to {self.path}: {error.strerror or error}; the "
                                 f"next call of sample() retries and returns the episodes"
                                 ) from error  # fmt: skip
        self._size = unwritten.offset + n_bytes
        self._unwritten = None

    def close(self) -> None:
        """Write the remaining block and close the file; closing twice is allowed.

        Raises:
            RecordingError: If the remaining block cannot be written and is lost.
        """
        try:
            if self._close.alive and os.getpid() == self._pid:
                self.write()
        finally:
            self._close()


class _Unwritten(NamedTuple):
    """A block and its position in the file, so that writing it twice has the same result."""

    offset: int
    head: bytes
    body: bytes

    @property
    def n_bytes(self) -> int:
        return len(self.head) + len(self.body)


def _new_file(folder: Path, stem: str) -> tuple[Path, FileIO]:
    """Create a file with the first free name and return (path, open file)."""
    for number in range(MOST_FILES):
        path = folder / f"{stem}-{number:04}.actions"
        try:
            return path, FileIO(path, "x+")
        except FileExistsError:
            continue
    raise RecordingError(f"{folder} already has {MOST_FILES} records of {stem}; set record_actions to another folder")

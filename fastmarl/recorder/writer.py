"""Writes a record of actions, call by call."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastmarl.acting.env_actions import EnvActions
from fastmarl.episodes.log import EpisodeLog
from fastmarl.errors import RecordingError
from fastmarl.recorder.blocks import encoded
from fastmarl.recorder.fragment import AgentNames, Fragment, fragment_of

MOST_FILES = 100_000  # of one runner number and incarnation in one folder


class ActionWriter:
    """A file of its own in a folder, which other runners may share.

    Every `write()` hands one block to the system at once: of a process that is killed, the call that was under way is
    lost, and nothing else.

    Args:
        folder: made if it is not there.
        meta: of the runner, as JSON; see `fastmarl.recorder.meta`.
        late_rewards: whether rewards may come after an agent's end.

    Attributes:
        path: of the file with the actions.

    Raises:
        RecordingError: the folder can't be written to.
    """

    def __init__(self, folder: str | os.PathLike, meta: dict[str, Any], *, late_rewards: bool):
        self._late_rewards = late_rewards
        self._names = AgentNames()
        self._pid = os.getpid()
        try:
            os.makedirs(folder, exist_ok=True)
            stem = f"worker-{meta['worker_index']:03}-{meta['incarnation']:02}"
            self.path, self._file = _new_file(Path(folder), stem)
            _write_whole(self.path.with_suffix(".json"), json.dumps(meta, indent=1))
        except OSError as error:
            raise RecordingError(f"can't write a record of actions to {os.fspath(folder)!r}: "
                                 f"{error.strerror or error}; give record_actions a folder that can be written to"
                                 ) from error  # fmt: skip
        self._size = 0
        self._close = weakref.finalize(self, _close_own, self._file, self._pid)

    def fragment(
        self, log: EpisodeLog, env_actions: Sequence[EnvActions], *, has_failed: bool = False
    ) -> Fragment | None:
        """What the call has recorded, before it is ended; nothing is written yet.

        Args:
            env_actions: by module index.
            has_failed: the call did not come to its end, and the running episodes are about to be dropped.
        """
        notes = list(log.sealed)
        if has_failed:
            notes.append(log.notes_of([record.env_index for record in log.store.running()]))
        return fragment_of(log.store, notes, env_actions, self._names, late_rewards=self._late_rewards)

    def write(self, fragment: Fragment | None) -> None:
        """Add it to the file.

        Raises:
            RecordingError: that failed, as on a full disk; the file is as it was before. Later calls are recorded
                if they can be.
        """
        if fragment is None:
            return
        if not self._close.alive or os.getpid() != self._pid:
            raise RecordingError(f"{self.path} is closed, or belongs to the process that made the runner")
        head, body = encoded(fragment.arrays, fragment.words)
        n_bytes = len(head) + len(body)
        try:
            written = os.pwritev(self._file, [head, body], self._size)
            while written < n_bytes:  # as of a file that has reached what is allowed
                rest = memoryview(head + body)[written:]
                written += os.pwrite(self._file, rest, self._size + written)
        except BaseException as error:
            os.ftruncate(self._file, self._size)  # a part of a block would hide those that follow
            if not isinstance(error, OSError):
                raise
            raise RecordingError(f"can't write the actions of this call to {self.path}: {error.strerror or error}; its "
                                 f"episodes are returned by the next call of sample()") from error  # fmt: skip
        self._size += n_bytes
        self._names.learn(fragment.agents)

    def close(self) -> None:
        """Close the file; twice is fine."""
        self._close()


def _close_own(file: int, pid: int) -> None:
    if os.getpid() == pid:
        os.close(file)


def _new_file(folder: Path, stem: str) -> tuple[Path, int]:
    """The first of these names that nobody has, and its descriptor."""
    for number in range(MOST_FILES):
        path = folder / f"{stem}-{number:04}.actions"
        try:
            return path, os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
    raise RecordingError(f"{folder} has {MOST_FILES} records of {stem} already; give record_actions another folder")


def _write_whole(path: Path, text: str) -> None:
    """Whoever finds the file finds all of it."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text)
    os.replace(beside, path)

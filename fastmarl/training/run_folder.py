"""The folder of a training run: its options, its learning curve and its checkpoints.

run.json            the algorithm, all options, versions
curve.csv           the learning curve
record/             actions, with --record-actions
checkpoint-3200/    after 3,200 env steps: what a runner saves, and in learner/ the rest of the training
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from fastmarl.core.checkpoint import STATE_FILE, load_state, save_state
from fastmarl.core.errors import CheckpointError, ConfigError
from fastmarl.core.sealed_json import replace_file
from fastmarl.report.records import versions

RUN_FILE, CURVE, PICTURE, RECORD, LOCK, LEARNER = "run.json", "curve.csv", "curve.png", "record", ".lock", "learner"
FORMAT = "fastmarl.run"
KEPT = 2  # checkpoints: if the newest is damaged, the one before it is there
_CHECKPOINT = re.compile(r"checkpoint(?:-(\d+))?")  # without a number: of a loop that writes one only
_LEFTOVER = re.compile(r"\.checkpoint-\d+\.[0-9a-f]{32}")  # of a process that was killed while it wrote or removed one


class RunFolder:
    """A folder with a run in it, or one that a run begins in; one process at a time.

    Args:
        path: the folder, which is there.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock: int | None = None

    @classmethod
    def begin(cls, path: Path | None, name: str, *, overwrite: bool) -> Self:
        """Make the folder of a new run.

        Args:
            path: None: runs/NAME-DATE-TIME.
            name: of the run.
            overwrite: remove a run that is in the folder; files that no run has written stay.

        Raises:
            ConfigError: there is a run in it, or the folder can't be made or written to.
        """
        chosen = path or _unused(Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
        folder = cls(chosen)
        try:
            chosen.mkdir(parents=True, exist_ok=True)
            folder.lock()
            if folder._written() and not overwrite:
                folder.unlock()
                raise ConfigError(f"{chosen} has a run in it: go on with it by --resume {chosen}, or replace it with "
                                  f"--overwrite")  # fmt: skip
            folder._clear()
        except OSError as error:
            folder.unlock()
            raise ConfigError(f"{chosen} can't be the folder of a run: {error.strerror or error}; choose another with "
                              f"--folder") from error  # fmt: skip
        return folder

    def has_progress(self) -> bool:
        """Return whether the run has learned anything: its first update is a row of the curve."""
        curve = self.path / CURVE
        return curve.exists() and len(curve.read_bytes().splitlines()) > 1

    def discard(self) -> None:
        """Remove a run without progress, and the folder if nothing else is in it."""
        self._clear()
        self.unlock()
        (self.path / LOCK).unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def lock(self) -> None:
        """Keep other processes out until this one ends or calls `unlock()`.

        Raises:
            ConfigError: another one is at work here.
        """
        import fcntl

        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.unlock()
            raise ConfigError(f"another process is training in {self.path}; wait for it, or choose another --folder"
                              ) from error  # fmt: skip

    def unlock(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Options.

    def write_options(self, algorithm: str, options: Mapping[str, Any]) -> None:
        """Write the options to run.json."""
        try:
            started = self.description()["started"]
        except CheckpointError:
            started = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"format": FORMAT, "algorithm": algorithm, "env": options["env"], "env_config": options["env_config"]}
        content = {**about, "options": dict(options), "versions": versions(), "started": started}
        replace_file(self.path / RUN_FILE, (json.dumps(content, indent=1) + "\n").encode())

    def description(self) -> dict[str, Any]:
        """Read run.json.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        file = self.path / RUN_FILE
        try:
            content = json.loads(file.read_bytes())
            known = content["format"] == FORMAT and all(
                isinstance(content[name], kind) for name, kind in (("algorithm", str), ("options", dict))
            )
        except OSError as error:
            raise CheckpointError(f"{self.path} is no folder of a training run: {file} can't be read "
                                  f"({error.strerror})") from error  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} is damaged: {error!r}; copy it from a backup, or begin the run again with "
                                  f"--overwrite") from error  # fmt: skip
        if not known:
            raise CheckpointError(f"{file} does not describe a training run")
        return content

    # Checkpoints.

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, the newest first."""
        found = [(number, each) for each in self.path.iterdir() if (number := steps_of(each)) is not None]
        return [each for _, each in sorted(found, reverse=True)]

    def save_checkpoint(self, env_steps: int, write: Callable[[Path], None], learner: Mapping[str, Any]) -> Path:
        """Write a checkpoint, which is whole or not there, and remove all but the last two.

        Args:
            env_steps: its number. One that is there stays as it is.
            write: writes the runner's part to a folder.
            learner: plain data.

        Raises:
            OSError: the disk is full, ...; earlier checkpoints are as they were.
        """
        target = self.path / f"checkpoint-{env_steps}"
        if target.exists():
            return target
        temporary = self._aside(target)
        try:
            write(temporary)
            save_state(temporary / LEARNER, dict(learner))
            _sync(temporary)
            os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync(self.path)
        for old in self.checkpoints()[KEPT:]:
            self._remove(old)
        return target

    def load_checkpoint(
        self, read: Callable[[Path], None], take: Callable[[dict[str, Any]], None], warn: Callable[[str], None]
    ) -> Path:
        """Load the newest checkpoint that is not damaged; newer ones are removed then.

        Args:
            read: reads the runner's part.
            take: takes the learner's part.
            warn: is called with a line about each that is damaged.

        Raises:
            CheckpointError: there is none, or all are damaged.
        """
        found = self.checkpoints()
        if not found:
            raise CheckpointError(f"{self.path} has no checkpoint; begin the run again with --overwrite")
        for i, each in enumerate(found):
            try:
                learner = load_state(each / LEARNER)
                load_state(each)
            except CheckpointError as error:
                if each is found[-1]:
                    raise
                warn(f"{error}; resuming from {found[i + 1].name}")
                continue
            read(each)
            take(learner)
            for damaged in found[:i]:
                self._remove(damaged)
            self._remove_leftovers()
            return each
        raise AssertionError

    def _remove(self, checkpoint: Path) -> None:
        """Rename it first, so that no half of it is ever taken for a checkpoint."""
        aside = self._aside(checkpoint)
        with suppress(OSError):  # it is tried again by the next run in this folder
            os.rename(checkpoint, aside)
            shutil.rmtree(aside)

    def _remove_leftovers(self) -> None:
        for each in self.path.iterdir():
            if _LEFTOVER.fullmatch(each.name):
                shutil.rmtree(each, ignore_errors=True)

    def _aside(self, checkpoint: Path) -> Path:
        return self.path / f".{checkpoint.name}.{uuid.uuid4().hex}"

    def _clear(self) -> None:
        for each in self._written():
            shutil.rmtree(each) if each.is_dir() else each.unlink()

    def _written(self) -> list[Path]:
        """Files and folders that training runs have written, run.json last."""
        names = (CURVE, PICTURE, RUN_FILE)
        folders = [
            each
            for each in self.path.iterdir()
            if each.is_dir()
            and (_CHECKPOINT.fullmatch(each.name) or _LEFTOVER.fullmatch(each.name) or each.name == RECORD)
        ]
        events = self.path.glob("events.out.tfevents.*")
        return [*folders, *events, *(self.path / name for name in names if (self.path / name).exists())]


def steps_of(path: Path) -> int | None:
    """Return the env steps in the name of a checkpoint, 0 if there are none; None: this is no checkpoint."""
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[1] or 0) if match and (path / STATE_FILE).is_file() else None


def checkpoint_in(path: Path) -> Path:
    """Return the newest checkpoint of a run's folder, or the folder itself."""
    if (path / STATE_FILE).exists() or not path.is_dir():
        return path
    return next(iter(RunFolder(path).checkpoints()), path)


def run_of(path: Path) -> RunFolder | None:
    """Return the run that a folder is, or that a checkpoint is in; None: there is none."""
    path = path.absolute()
    return next((RunFolder(each) for each in (path, path.parent) if (each / RUN_FILE).is_file()), None)


def runs_in(path: Path) -> list[Path]:
    """Return the folders in a folder that are runs, newest first; none if it is a checkpoint."""
    if (path / STATE_FILE).exists():
        return []
    files = path.glob(f"*/{RUN_FILE}")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]


def _sync(path: Path) -> None:
    """Have the names in a folder on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unused(path: Path) -> Path:
    """Return the path, with a number behind it if it is taken."""
    paths = [path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 1000))]
    return next(each for each in paths if not each.exists())

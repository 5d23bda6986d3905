"""The directory of a training run: options, learning curve and checkpoints.

run.json            the algorithm, all options, versions
curve.csv           the learning curve
record/             actions, with --record-actions
checkpoint-3200/    after 3,200 env steps: the runner checkpoint, and in learner/ the rest of the training state
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from fastmarl.core.checkpoint.folder import STATE_FILE, load_state, save_state
from fastmarl.core.checkpoint.sealed_json import check_seal, read_file, write_sealed
from fastmarl.core.config import renamed
from fastmarl.core.errors import CheckpointError, ConfigError
from fastmarl.report.records import versions

RUN_FILE, CURVE, PICTURE, RECORD, LOCK, LEARNER = "run.json", "curve.csv", "curve.png", "record", ".lock", "learner"
FILES = (RUN_FILE, CURVE, PICTURE)
RUNNER = "runner"  # in the learner's state: digest of the runner's state saved with it
FORMAT = "fastmarl.run"
MOST_BYTES = 2**24  # maximum size of run.json
KEPT = 2  # number of checkpoints, so that there is another one if the latest is damaged
_CHECKPOINT = re.compile(r"checkpoint(?:-(\d+))?")  # a loop with a single checkpoint may omit the number
_LEFTOVER = re.compile(r"\.(checkpoint(-\d+)?|run\.json|curve\.csv)\.[0-9a-f]{32}")  # left by a killed process
_OF_RUNS = re.compile(r"\.?wandb|run\.json|curve\.(csv|png)|record|checkpoint.*|events\.out\.tfevents\..*")
_OF_WANDB = (".wandb", "wandb")  # directories in which the client creates and replaces links
ABOUT = {"algorithm": str, "options": dict, "started": str}
OPTIONS = {"env": str, "env_config": dict, "module": list, "steps": int}  # needed to read a run


class RunFolder:
    """The directory of a new or existing run, which only one process at a time can lock.

    Args:
        path: Path of the directory.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock: int | None = None

    @classmethod
    def begin(cls, path: Path | None, name: str, *, overwrite: bool) -> Self:
        """Create and lock the directory of a new run.

        Args:
            path: Path of the directory; None for runs/NAME-DATE-TIME.
            name: Name of the run.
            overwrite: True to remove an existing run from the directory; files not written by a run are kept.

        Raises:
            ConfigError: If the directory contains a run, or links with the names of run files, or cannot be created or
                written to.
        """
        chosen = path or _unused(Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
        folder = cls(chosen)
        try:
            chosen.mkdir(parents=True, exist_ok=True)
            folder.lock()
            if folder._written() and not overwrite:
                raise ConfigError(f"{chosen} already contains a run: continue it with --resume {folder.quoted}, or "
                                  f"replace it with --overwrite")  # fmt: skip
            folder._clear()
            folder.check_files()
        except BaseException as error:
            folder.unlock()
            if not isinstance(error, OSError):
                raise
            raise ConfigError(f"{chosen} can't be the folder of a run: {error.strerror or error}; choose another with "
                              f"--folder") from error  # fmt: skip
        return folder

    @property
    def quoted(self) -> str:
        """The path as an argument of a shell command."""
        return shlex.quote(os.fspath(self.path))

    def has_progress(self) -> bool:
        """Return True if the run has made progress, that is, if the learning curve has a row."""
        curve = self.path / CURVE
        return curve.exists() and len(read_file(curve).splitlines()) > 1

    def discard(self) -> None:
        """Remove a run without progress, and its directory if it is then empty."""
        self._clear()
        (self.path / LOCK).unlink(missing_ok=True)
        self.unlock()
        with suppress(OSError):
            self.path.rmdir()

    def lock(self) -> None:
        """Lock the directory against other processes until this process exits or calls `unlock()`.

        Raises:
            ConfigError: If another process is training in the directory, or the directory is not writable.
        """
        import fcntl

        try:
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.unlock()
            raise ConfigError(f"another process is training in {self.path}; wait for it, or choose another --folder"
                              ) from error  # fmt: skip
        except OSError as error:
            self.unlock()
            raise ConfigError(f"{self.path} can't be written to: {error.strerror or error}") from error
        if not os.fstat(self._lock).st_nlink:  # another process discarded its run after the file was opened
            self.unlock()
            self.lock()

    def unlock(self) -> None:
        """Release the lock of the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check_files(self) -> None:
        """Raise ConfigError if a link, pipe, device or socket has the name of a file that training reads or writes.

        The directory may be untrusted: a link could point to any user file, and opening a pipe could block forever.
        """
        for each in self._of_runs():
            mode = each.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise ConfigError(f"{each} is a link, which may lead out of the folder, to files that training would "
                                  f"overwrite; replace it with a file or folder, or remove it")  # fmt: skip
            if not stat.S_ISREG(mode) and (each.name in FILES or not stat.S_ISDIR(mode)):
                raise ConfigError(f"{each} must be a regular file, because training reads or writes it; move it away")

    def _of_runs(self) -> Iterator[Path]:
        for each in self.path.iterdir():
            if _OF_RUNS.fullmatch(each.name):
                yield each
                if each.name not in _OF_WANDB and not each.is_symlink():
                    yield from each.rglob("*")

    # Options.

    def write_options(self, algorithm: str, options: Mapping[str, Any]) -> None:
        """Write the options to run.json.

        Raises:
            ConfigError: If the file cannot be written.
        """
        try:
            started = self.description()["started"]
        except CheckpointError:
            started = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"format": FORMAT, "algorithm": algorithm, "options": dict(options)}
        content = {**about, "versions": versions(), "started": started}
        file = self.path / RUN_FILE
        try:
            write_sealed(file, content)
        except OSError as error:
            raise ConfigError(f"{file} can't be written: {error.strerror or error}") from error

    def description(self) -> dict[str, Any]:
        """Read run.json.

        Raises:
            CheckpointError: If the file is missing or damaged.
        """
        file = self.path / RUN_FILE
        try:
            content = json.loads(read_file(file, MOST_BYTES))
            if content["format"] == FORMAT and "sha256" not in content:
                raise ValueError("it has no checksum: it is incomplete or was written by an earlier fastmarl")
            content = check_seal(content)
            known = content["format"] == FORMAT and all(
                isinstance(within[name], kind)
                for within, kinds in ((content, ABOUT), (content["options"], OPTIONS))
                for name, kind in kinds.items()
            )
        except OSError as error:
            raise CheckpointError(f"{self.path} is not the folder of a training run: {file} can't be read "
                                  f"({error.strerror})") from error  # fmt: skip
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{file} is damaged or was changed by hand: {error}; copy it from a backup, or "
                                  f"restart the run with --overwrite") from error  # fmt: skip
        if not known:
            raise CheckpointError(f"{file} does not describe a training run")
        return {**content, "options": renamed(content["options"])}

    # Checkpoints.

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, latest first."""
        found = [(number, each) for each in self.path.iterdir() if (number := steps_of(each)) is not None]
        return [each for _, each in sorted(found, reverse=True)]

    def save_checkpoint(self, env_steps: int, write: Callable[[Path], None], learner: Mapping[str, Any]) -> Path:
        """Write a checkpoint atomically, and remove all but the last two.

        Args:
            env_steps: Number of env steps, which becomes part of the name. An existing checkpoint is kept.
            write: Function that writes the runner part to a directory.
            learner: Learner state as plain data.

        Returns:
            Path of the checkpoint.

        Raises:
            OSError: If writing fails, for example on a full disk; earlier checkpoints are unchanged.
        """
        target = self.path / f"checkpoint-{env_steps}"
        if steps_of(target) is not None:
            return target
        temporary = self._aside(target)
        try:
            write(temporary)
            save_state(temporary / LEARNER, {**learner, RUNNER: _digest(temporary)})
            _sync(temporary)
            os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync(self.path)
        with suppress(OSError):  # the next checkpoint will try again
            for old in self.checkpoints()[KEPT:]:
                self._remove(old)
        return target

    def load_checkpoint(
        self, read: Callable[[Path], None], take: Callable[[dict[str, Any]], None], warn: Callable[[str], None]
    ) -> Path:
        """Load the latest undamaged checkpoint and remove later ones.

        Args:
            read: Function that restores the runner part from a directory.
            take: Function that restores the learner part.
            warn: Function that receives a message about each damaged checkpoint.

        Returns:
            Path of the checkpoint.

        Raises:
            CheckpointError: If there is no checkpoint, or all are damaged.
        """
        found = self.checkpoints()
        if not found:
            raise CheckpointError(f"{self.path} has no checkpoint; restart the run with --overwrite")
        for i, each in enumerate(found):
            try:
                learner = load_state(each / LEARNER)
                load_state(each)
                runner = _digest(each)
                if (
                    isinstance(learner, dict) and learner.pop(RUNNER, runner) != runner
                ):  # earlier versions did not save it
                    raise CheckpointError(
                        f"{each / LEARNER} belongs to another checkpoint; copy the entire folder again"
                    )
            except CheckpointError as error:
                if each is found[-1]:
                    raise
                warn(f"{error}; resuming from {found[i + 1].name}")
                continue
            read(each)
            take(learner)
            for damaged in found[:i]:
                self._remove(damaged)
            for leftover in self._leftovers():
                _delete(leftover)
            return each
        raise AssertionError

    def _remove(self, checkpoint: Path) -> None:
        """Remove a checkpoint, renaming it first so that no partial checkpoint is ever found."""
        aside = self._aside(checkpoint)
        os.rename(checkpoint, aside)
        _delete(aside)

    def _leftovers(self) -> list[Path]:
        return [each for each in self.path.iterdir() if _LEFTOVER.fullmatch(each.name)]

    def _aside(self, checkpoint: Path) -> Path:
        return self.path / f".{checkpoint.name}.{uuid.uuid4().hex}"

    def _clear(self) -> None:
        """Remove all files written by training runs, run.json last."""
        for checkpoint in self.checkpoints():
            self._remove(checkpoint)
        for each in self._written():
            _delete(each)

    def _written(self) -> list[Path]:
        """Return the files and directories written by training runs, with run.json last."""
        names = (CURVE, PICTURE, *([RECORD] if (self.path / RUN_FILE).exists() else []), RUN_FILE)
        events = self.path.glob("events.out.tfevents.*")
        files = [self.path / name for name in names if (self.path / name).exists()]
        return [*self.checkpoints(), *self._leftovers(), *events, *files]


def steps_of(path: Path) -> int | None:
    """Return the number of env steps in the name of a checkpoint (0 without a number), or None for other paths."""
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[1] or 0) if match and (path / STATE_FILE).is_file() else None


def checkpoint_in(path: Path) -> Path:
    """Return the latest checkpoint in a run directory; other paths are returned unchanged."""
    if (path / STATE_FILE).exists() or not path.is_dir():
        return path
    return next(iter(RunFolder(path).checkpoints()), path)


def run_of(path: Path) -> RunFolder | None:
    """Return the run that a run directory or checkpoint belongs to, or None for other paths."""
    path = path.absolute()
    return next((RunFolder(each) for each in (path, path.parent) if (each / RUN_FILE).exists()), None)


def runs_in(path: Path) -> list[Path]:
    """Return the run directories in a directory, latest first; an empty list if `path` is a checkpoint."""
    if (path / STATE_FILE).exists():
        return []
    files = path.glob(f"*/{RUN_FILE}")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]


def _delete(path: Path) -> None:
    """Remove a file, a directory, or a link without its target."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _sync(path: Path) -> None:
    """Flush the entries of a directory to disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unused(path: Path) -> Path:
    """Return `path`, with a number appended if it already exists."""
    paths = [path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 1000))]
    return next(each for each in paths if not each.exists())


def _digest(checkpoint: Path) -> str:
    """Return the SHA-256 digest of the runner's state file, which includes the digest of the arrays."""
    return hashlib.sha256(read_file(checkpoint / STATE_FILE)).hexdigest()

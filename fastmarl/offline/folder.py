"""A folder of recorded episodes: its parts, and the names of their files.

    parts/worker-000000-000000.json                     what is in the part: its files, and their columns
    meta/episodes/worker-000000-000000.parquet          a row for each chunk of an episode
    data/MODULE/worker-000000-000000.parquet            a row for each step of an agent of this module
    lookback/MODULE/worker-000000-000000.parquet        steps before a chunk, which earlier chunks have, too

Files of one name are a part. They are written under names that begin with a dot, and then renamed, the one in `parts`
last: a part is whole if that one is there. It has a checksum of each file. Parquet's own checksums cover the data of
pages only, not their headers and not the footer, where a flipped byte changes types, positions and nulls.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from fastmarl.core.errors import OfflineError
from fastmarl.core.kernels.fingerprints import checksum
from fastmarl.core.sealed_json import check_seal, write_sealed
from fastmarl.core.version import __version__
from fastmarl.offline.form import TableForm

FORMAT, VERSION = "fastmarl.offline", 3
PARTS, EPISODES, DATA, LOOKBACK = "parts", "meta/episodes", "data", "lookback"
OLD_INFO = "meta/info.json"  # described the folder up to version 2
SUFFIX = ".parquet"
WORD, CHUNK_WORDS = 8, 131_072  # 1 MiB is read at once


class PartFile(NamedTuple):
    """A file of a part, as its part knows it.

    Attributes:
        kind: EPISODES, DATA or LOOKBACK.
        module_id: None: EPISODES.
        form: number of the form among those of this module in the part, from 1 on.
    """

    kind: str
    module_id: str | None
    form: int
    n_rows: int
    n_bytes: int
    checksum: int

    def is_sound(self) -> bool:
        """Return true if these can be right: they come from a file, and name others."""
        is_named = self.module_id is None if self.kind == EPISODES else isinstance(self.module_id, str)
        numbers = (self.form, self.n_rows, self.n_bytes, self.checksum)
        return (
            self.kind in (EPISODES, DATA, LOOKBACK)
            and is_named
            and all(type(number) is int and number >= 0 for number in numbers)
        )


@dataclass(frozen=True)
class Part:
    """A part that is whole.

    Attributes:
        modules: by module, dtype and shape of each column of its outputs, actions and observations.
    """

    folder: Path
    name: str
    files: list[PartFile]
    modules: dict[str, dict[str, Any]]

    def of(self, kind: str, module_id: str | None = None) -> list[PartFile]:
        """The files of this kind, of one module or all."""
        return [file for file in self.files if file.kind == kind and module_id in (None, file.module_id)]

    def path(self, file: PartFile) -> Path:
        return file_path(self.folder, self.name, file.kind, file.module_id, file.form)

    def check_is_complete(self) -> None:
        """Raises OfflineError if a file is missing, or has another size."""
        for file in self.files:
            try:
                n_bytes = self.path(file).stat().st_size
            except OSError as error:
                raise OfflineError(f"can't read {self.path(file)}: {error.strerror}; is it missing?") from error
            if n_bytes != file.n_bytes:
                raise OfflineError(f"can't read {self.path(file)}: it has {n_bytes} bytes, {file.n_bytes} were "
                                   f"written; is it damaged, copied in part, or of another writer?")  # fmt: skip

    def check(self, file: PartFile) -> Path:
        """Verify the checksum of a file. Returns its path.

        Raises:
            OfflineError: it is damaged, or can't be read.
        """
        path = self.path(file)
        try:
            is_same = checksum_of(path) == file.checksum
        except OSError as error:
            raise OfflineError(f"can't read {path}: {error.strerror}") from error
        if not is_same:
            raise OfflineError(f"{path} is damaged: its checksum does not match; restore the file from a copy")
        return path


def file_path(folder: Path, name: str, kind: str, module_id: str | None, form: int) -> Path:
    """Where a file of a part is. A module's folder has its id, with `%` and two digits for what names can't have."""
    where = folder / kind
    if module_id is not None:
        quoted = quote(module_id, safe=" ()+,;@~")
        where /= "%2E" + quoted[1:] if quoted.startswith(".") else quoted or "%"
    return where / (f"{name}{SUFFIX}" if form == 1 else f"{name}-form{form}{SUFFIX}")


def hidden(path: Path) -> Path:
    """The name of a file while it is being written, and of a part's description while its name is taken."""
    return path.with_name(f".{path.name}.tmp")


def open_folder(path: str | os.PathLike[str]) -> Path:
    """A folder to write to, made if it is not there: its absolute path, as the working directory may change.

    Raises:
        OfflineError: it can't be written to, or has other things in it.
    """
    folder = Path(path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            _check_is_ours(folder)
        (folder / PARTS).mkdir(exist_ok=True)
        probe = folder / PARTS / f".probe-{os.getpid()}-{os.urandom(4).hex()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OfflineError(f"can't write episodes to the folder {folder}: {error}") from error
    return folder


def claim(folder: Path, worker_index: int, number: int) -> tuple[str, int]:
    """(the name of a new part, its number): the first free one from `number` on, which no other writer gets.

    A name is not free where a part that never got whole has left files.
    """
    while True:
        name = f"worker-{worker_index:06d}-{number:06d}"
        manifest = folder / PARTS / f"{name}.json"
        try:
            os.close(os.open(hidden(manifest), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            number += 1
            continue
        if not manifest.exists() and not any(folder.glob(f"*/*/{name}*{SUFFIX}")):
            return name, number
        hidden(manifest).unlink()
        number += 1


def seal(folder: Path, name: str, files: list[PartFile], forms: Iterable[tuple[str, TableForm]]) -> None:
    """Make a part whole, whose files have their names.

    Args:
        forms: of its modules.
    """
    modules: dict[str, Any] = {}
    for module_id, form in forms:
        features = {leaf.name: {"dtype": leaf.dtype, "shape": list(leaf.shape)} for leaf in form.leaves}
        modules.setdefault(module_id, {}).update(features)
    content = {"format": FORMAT, "version": VERSION, "fastmarl_version": __version__, "modules": modules}
    manifest = folder / PARTS / f"{name}.json"
    write_sealed(manifest, {**content, "files": [file._asdict() for file in files]})
    with suppress(OSError):
        hidden(manifest).unlink()


def abandon(folder: Path, name: str) -> None:
    """Give the name of a part back that will never be whole, as far as the disk lets it."""
    manifest = folder / PARTS / f"{name}.json"
    for path in (manifest, hidden(manifest)):
        with suppress(OSError):
            path.unlink()


def parts_of(folder: Path) -> Iterator[Part]:
    """The parts that are whole now, in order; none, if the folder has just been begun.

    Raises:
        OfflineError: this is no folder of recorded episodes, or of another version. The iterator: a part is, or its
            description is damaged.
    """
    _check_is_ours(folder)
    return map(_read_manifest, _manifests(folder))


def _check_is_ours(folder: Path) -> None:
    """Raises OfflineError if a folder has other things in it than recorded episodes, or those of another version."""
    if (folder / OLD_INFO).is_file():
        _read_entries(folder / OLD_INFO)
    if manifests := _manifests(folder):
        _read_manifest(manifests[0])
        return
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    others = names - {PARTS, DATA, LOOKBACK, "meta"}
    others.update(f"{PARTS}/{path.name}" for path in (folder / PARTS).glob("[!.]*"))  # those of writers are hidden
    if others or PARTS not in names:
        what = f"it has {min(others)!r}" if others else f"it has no folder {PARTS!r}"
        raise OfflineError(f"{folder} is no folder of recorded episodes: {what}; a writer needs such a folder, or an "
                           f"empty one")  # fmt: skip


def _manifests(folder: Path) -> list[Path]:
    return sorted((folder / PARTS).glob("worker-*.json"))


def _read_manifest(file: Path) -> Part:
    entries = _read_entries(file)
    try:
        files = [PartFile(**each) for each in entries["files"]]
        modules: dict[str, dict[str, Any]] = {name: dict(columns) for name, columns in entries["modules"].items()}
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise OfflineError(f"{file} is damaged: {error}") from error
    for each in files:
        if not each.is_sound():
            raise OfflineError(f"{file} is damaged: a part has no file like {each!r:.300}")
    return Part(file.parents[1], file.stem, files, modules)


def _read_entries(file: Path) -> dict[str, Any]:
    """Return what a description says, without its checksum."""
    try:
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise OfflineError(f"{file} is not of recorded episodes")
        if content.get("version") != VERSION:
            raise OfflineError(f"{file} has version {content.get('version')!r}; this fastmarl {__version__} reads "
                               f"version {VERSION}: read it with fastmarl {content.get('fastmarl_version')}, which "
                               f"has written it, and write to another folder")  # fmt: skip
        return check_seal(content)
    except OSError as error:
        raise OfflineError(f"can't read {file}: {error}") from error
    except ValueError as error:
        raise OfflineError(f"{file} is damaged: {error}") from error


def compile_checksum() -> None:
    """Compile what the thread that writes calls, in the thread that makes the writer.

    numba takes a lock to compile or load a function, and keeps it where an interrupt ends that in the main thread:
    another thread would wait for it for ever.
    """
    checksum(np.zeros(1, np.uint64))


def checksum_of(path: Path) -> int:
    """Checksum of a file's bytes."""
    words, total = np.empty(CHUNK_WORDS, np.uint64), 0
    data = words.view(np.uint8)
    with path.open("rb") as file:
        while n := file.readinto(data.data):
            n_words = -(-n // WORD)
            data[n : n_words * WORD] = 0
            total = (total * 3 + int(checksum(words[:n_words]))) % 2**64
    return total

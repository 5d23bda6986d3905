"""Parts of a directory of recorded episodes, and their file names.

    parts/worker-000000-000000.json                     describes the part: its files and their columns
    meta/episodes/worker-000000-000000.parquet          one row per chunk of an episode
    data/MODULE/worker-000000-000000.parquet            one row per step of an agent of this module
    lookback/MODULE/worker-000000-000000.parquet        steps before a chunk, which earlier chunks also contain

Files with the same name form a part. They are written under names that start with a dot and then renamed, the one in
`parts` last, so a part is complete if its file in `parts` exists. That file has a checksum of every other file: Parquet
checksums cover only the data of pages, not their headers or the footer, where a flipped byte changes types, positions
and nulls.
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

from fastmarl.core import __version__
from fastmarl.core.checkpoint.sealed_json import check_seal, open_file, read_file, write_sealed
from fastmarl.core.errors import OfflineError
from fastmarl.core.kernels.fingerprints import checksum
from fastmarl.offline.form import TableForm

FORMAT, VERSION = "fastmarl.offline", 3
PARTS, EPISODES, DATA, LOOKBACK = "parts", "meta/episodes", "data", "lookback"
OLD_INFO = "meta/info.json"  # described the directory up to version 2
SUFFIX = ".parquet"
WORD, CHUNK_WORDS = 8, 131_072  # reads 1 MiB at a time


class PartFile(NamedTuple):
    """An entry for a file in the description of its part.

    Attributes:
        kind: EPISODES, DATA or LOOKBACK.
        module_id: None for EPISODES.
        form: Index of the form among the forms of the module in this part, starting at 1.
        n_rows: Number of rows.
        n_bytes: Size of the file.
        checksum: See `checksum_of()`.
    """

    kind: str
    module_id: str | None
    form: int
    n_rows: int
    n_bytes: int
    checksum: int

    def is_sound(self) -> bool:
        """Return whether the values, which were read from a file, are valid."""
        is_named = self.module_id is None if self.kind == EPISODES else isinstance(self.module_id, str)
        numbers = (self.form, self.n_rows, self.n_bytes, self.checksum)
        return (
            self.kind in (EPISODES, DATA, LOOKBACK)
            and is_named
            and all(type(number) is int and number >= 0 for number in numbers)
        )


@dataclass(frozen=True)
class Part:
    """A complete part.

    Attributes:
        folder: The directory of recorded episodes.
        name: Name shared by the files of the part.
        files: All files of the part.
        modules: Module id -> dtype and shape of each column of its outputs, actions and observations.
    """

    folder: Path
    name: str
    files: list[PartFile]
    modules: dict[str, dict[str, Any]]

    def of(self, kind: str, module_id: str | None = None) -> list[PartFile]:
        """Return the files of this kind for a single module, or for all modules if `module_id` is None."""
        return [file for file in self.files if file.kind == kind and module_id in (None, file.module_id)]

    def path(self, file: PartFile) -> Path:
        return file_path(self.folder, self.name, file.kind, file.module_id, file.form)

    def check_is_complete(self) -> None:
        """Check that all files exist and have the right size.

        Raises:
            OfflineError: If a file is missing or has the wrong size.
        """
        for file in self.files:
            try:
                n_bytes = self.path(file).stat().st_size
            except OSError as error:
                raise OfflineError(f"can't read {self.path(file)}: {error.strerror}; is it missing?") from error
            if n_bytes != file.n_bytes:
                raise OfflineError(f"can't read {self.path(file)}: it has {n_bytes} bytes, expected {file.n_bytes}; "
                                   f"is it damaged, partly copied, or from another writer?")  # fmt: skip

    def check(self, file: PartFile) -> Path:
        """Verify the checksum of a file and return its path.

        Raises:
            OfflineError: If the file is damaged or cannot be read.
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
    """Return the path of a file of a part.

    The directory of a module is named after its id, with characters not allowed in file names percent-encoded.
    """
    where = folder / kind
    if module_id is not None:
        quoted = quote(module_id, safe=" ()+,;@~")
        where /= "%2E" + quoted[1:] if quoted.startswith(".") else quoted or "%"
    return where / (f"{name}{SUFFIX}" if form == 1 else f"{name}-form{form}{SUFFIX}")


def hidden(path: Path) -> Path:
    """Return the temporary name of a file being written, which also reserves the part name."""
    return path.with_name(f".{path.name}.tmp")


def open_folder(path: str | os.PathLike[str]) -> Path:
    """Open a directory for writing, creating it if necessary, and return its absolute path.

    The path is absolute because the working directory may change.

    Raises:
        OfflineError: If the directory is not writable or contains other files.
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
    """Reserve a name for a new part and return it with its number.

    The number is the first free one, starting from `number`; no other writer gets the same name. A name used by
    files of an incomplete part is not free.
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
    """Complete a part, once all of its files have their final names.

    Args:
        folder: The directory of recorded episodes.
        name: Name of the part.
        files: All files of the part.
        forms: Pairs (module id, form).
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
    """Release the name of a part that will never be completed, ignoring disk errors."""
    manifest = folder / PARTS / f"{name}.json"
    for path in (manifest, hidden(manifest)):
        with suppress(OSError):
            path.unlink()


def parts_of(folder: Path) -> Iterator[Part]:
    """Return an iterator over the complete parts, in order, which is empty if recording has just started.

    Raises:
        OfflineError: If the directory has no recorded episodes, or another version of the format. The iterator also
            raises it at a part with another version or a damaged description.
    """
    _check_is_ours(folder)
    return map(_read_manifest, _manifests(folder))


def _check_is_ours(folder: Path) -> None:
    """Check that a directory contains nothing but recorded episodes in this version of the format.

    Raises:
        OfflineError: If it contains other files or another version.
    """
    if (folder / OLD_INFO).is_file():
        _read_entries(folder / OLD_INFO)
    if manifests := _manifests(folder):
        _read_manifest(manifests[0])
        return
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    others = names - {PARTS, DATA, LOOKBACK, "meta"}
    others.update(f"{PARTS}/{path.name}" for path in (folder / PARTS).glob("[!.]*"))  # hidden files belong to writers
    if others or PARTS not in names:
        what = f"it has {min(others)!r}" if others else f"it has no folder {PARTS!r}"
        raise OfflineError(f"{folder} has no recorded episodes: {what}; to write, use an empty folder or one with "
                           f"recorded episodes")  # fmt: skip


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
            raise OfflineError(f"{file} is damaged: invalid file entry {each!r:.300}")
    return Part(file.parents[1], file.stem, files, modules)


def _read_entries(file: Path) -> dict[str, Any]:
    """Return the contents of a part description, without its checksum."""
    try:
        content = json.loads(read_file(file))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise OfflineError(f"{file} does not describe recorded episodes")
        if content.get("version") != VERSION:
            raise OfflineError(f"{file} has format version {content.get('version')!r}, but fastmarl {__version__} "
                               f"reads only version {VERSION}: read it with fastmarl "
                               f"{content.get('fastmarl_version')}, which wrote it; to record new episodes, use "
                               f"another folder")  # fmt: skip
        return check_seal(content)
    except OSError as error:
        raise OfflineError(f"can't read {file}: {error}") from error
    except ValueError as error:
        raise OfflineError(f"{file} is damaged: {error}") from error


def compile_checksum() -> None:
    """Compile the checksum function in the thread that creates the writer, before the writer thread calls it.

    Numba holds a lock while compiling or loading a function. If an interrupt of the main thread leaves it locked,
    another thread would wait for it forever.
    """
    checksum(np.zeros(1, np.uint64))


def checksum_of(path: Path) -> int:
    """Return the checksum of the bytes of a file."""
    words, total = np.empty(CHUNK_WORDS, np.uint64), 0
    data = words.view(np.uint8)
    with open_file(path) as file:
        while n := file.readinto(data.data):
            n_words = -(-n // WORD)
            data[n : n_words * WORD] = 0
            total = (total * 3 + int(checksum(words[:n_words]))) % 2**64
    return total

"""A folder of recorded episodes: names of its files, and which of them are whole.

    meta/info.json                                      what is in the folder
    meta/episodes/worker-000000-000000.parquet          a row for each chunk of an episode
    data/MODULE/worker-000000-000000.parquet            a row for each step of an agent of this module
    lookback/MODULE/worker-000000-000000.parquet        steps before a chunk, which earlier chunks have, too

Files of one name are a part. They are written under names that begin with a dot, and then renamed, the one in
`meta/episodes` last: a part is whole if that one is there.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from fastmarl.core.errors import OfflineError
from fastmarl.core.sealed_json import check_seal, sealed
from fastmarl.core.version import __version__
from fastmarl.offline.form import TableForm

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT, VERSION = "fastmarl.offline", 2
INFO, LOCK, EPISODES, DATA, LOOKBACK = "meta/info.json", "meta/.info.lock", "meta/episodes", "data", "lookback"
SUFFIX = ".parquet"


def module_folder(module_id: str) -> str:
    """A name for a module's folder: its id, with `%` and two digits for what file names can't have."""
    name = quote(module_id, safe=" ()+,;@~")
    return "%2E" + name[1:] if name.startswith(".") else name or "%"


def module_of_folder(name: str) -> str:
    """The id that `module_folder()` was given."""
    return "" if name == "%" else unquote(name)


def hidden(path: Path) -> Path:
    """The name of a file that is being written."""
    return path.with_name(f".{path.name}.tmp")


def open_folder(path: str | os.PathLike[str]) -> Path:
    """A folder to write to, made if it is not there: its absolute path, as the working directory may change.

    Raises:
        OfflineError: it can't be written to, or has other things in it.
    """
    folder = Path(path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / INFO).exists() and not (folder / "meta").is_dir():
            raise OfflineError(f"the folder {folder} has files in it that are no recorded episodes; give an empty one")
        if (folder / INFO).exists():
            read_info(folder)
        (folder / EPISODES).mkdir(parents=True, exist_ok=True)
        probe = folder / EPISODES / f".probe-{os.getpid()}-{os.urandom(4).hex()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OfflineError(f"can't write episodes to the folder {folder}: {error}") from error
    return folder


def read_info(folder: Path) -> dict[str, Any]:
    """What `meta/info.json` says.

    Raises:
        OfflineError: it is not there, damaged, or of another version.
    """
    try:
        info = json.loads((folder / INFO).read_bytes())
    except OSError as error:
        raise OfflineError(f"{folder} is no folder of recorded episodes: {error}") from error
    except ValueError as error:
        raise OfflineError(f"{folder / INFO} is damaged: {error}") from error
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        raise OfflineError(f"{folder / INFO} is not of recorded episodes")
    if info.get("version") != VERSION:
        raise OfflineError(f"{folder / INFO} has version {info.get('version')!r}; this fastmarl {__version__} reads "
                           f"version {VERSION}")  # fmt: skip
    try:
        return check_seal(info)
    except ValueError as error:
        raise OfflineError(f"{folder / INFO} is damaged: {error}") from error


def note_forms(folder: Path, forms: dict[str, TableForm]) -> None:
    """Write `meta/info.json`, with the columns of these modules beside those that it has.

    Raises:
        OfflineError: it can't be written, or is damaged.
    """
    try:
        with _locked(folder / LOCK):
            modules: dict[str, Any] = read_info(folder)["modules"] if (folder / INFO).exists() else {}
            for module_id, form in forms.items():
                features = {leaf.name: {"dtype": leaf.dtype, "shape": list(leaf.shape)} for leaf in form.leaves}
                modules[module_id] = {**modules.get(module_id, {}), **features}
            content = {"format": FORMAT, "version": VERSION, "fastmarl_version": __version__, "modules": modules}
            temporary = hidden(folder / f"{INFO}.{os.getpid()}-{os.urandom(4).hex()}")
            try:
                temporary.write_text(sealed(content))
                temporary.replace(folder / INFO)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise OfflineError(f"can't write {folder / INFO}: {error}") from error


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Other threads and processes wait here; not where the system has no locks, such as on some network drives."""
    with file.open("w") as opened:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing the file is not enough: a process forked by another thread has it open, too.
            if fcntl is not None:
                with suppress(OSError):
                    fcntl.flock(opened, fcntl.LOCK_UN)


def claim(folder: Path, worker_index: int, number: int) -> tuple[str, int]:
    """(the name of a new part, its number): the first free one from `number` on, which nobody else gets.

    A name is not free where a part that never got whole has left files.
    """
    while True:
        name = f"worker-{worker_index:06d}-{number:06d}"
        final = folder / EPISODES / f"{name}{SUFFIX}"
        try:
            os.close(os.open(hidden(final), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            number += 1
            continue
        if not final.exists() and not any(files_of(folder, kind, name) for kind in (DATA, LOOKBACK)):
            return name, number
        hidden(final).unlink()
        number += 1


def parts_of(folder: Path) -> list[str]:
    """Names of the whole parts, in order."""
    return sorted(file.name.removesuffix(SUFFIX) for file in (folder / EPISODES).glob(f"worker-*{SUFFIX}"))


def files_of(folder: Path, kind: str, name: str, module_id: str | None = None) -> list[tuple[str, Path]]:
    """(module id, file) of a part's files of this kind: those of one form each."""
    if module_id is None:
        folders = sorted(each for each in (folder / kind).glob("*") if each.is_dir())
    else:
        folders = [folder / kind / module_folder(module_id)]
    return [
        (module_of_folder(each.name), file)
        for each in folders
        for file in (each / f"{name}{SUFFIX}", *sorted(each.glob(f"{name}-form*{SUFFIX}")))
        if file.exists()
    ]


def modules_of(folder: Path) -> list[str]:
    """Ids of the modules that have a folder."""
    return sorted(module_of_folder(each.name) for each in (folder / DATA).glob("*") if each.is_dir())

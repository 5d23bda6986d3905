"""Extensions compiled from `src_ext/*.pyx`, each with a stub file next to it.

Raises:
    NotBuiltError: If an extension is missing or was built for a different Python version.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from fastmarl.core.errors import NotBuiltError


def missing_extensions(folder: Path) -> list[str]:
    """Return the names of the stubs in `folder` without an extension compiled for this Python version."""
    files = {path.name for path in folder.iterdir()}
    names = sorted(name.removesuffix(".pyi") for name in files if name.endswith(".pyi"))
    return [name for name in names if not any(name + suffix in files for suffix in EXTENSION_SUFFIXES)]


if missing := missing_extensions(Path(__file__).parent):
    raise NotBuiltError(str(Path(__file__).parent), missing)

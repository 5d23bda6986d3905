"""The compiled extensions, built of `src_ext/*.pyx`, each with a stub beside it.

Raises:
    NotBuiltError: one of them is missing, or was built for another Python.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from fastmarl.core.errors import NotBuiltError


def missing_extensions(folder: Path) -> list[str]:
    """Names of the stubs in `folder` that have no extension for this Python beside them."""
    files = {path.name for path in folder.iterdir()}
    names = sorted(name.removesuffix(".pyi") for name in files if name.endswith(".pyi"))
    return [name for name in names if not any(name + suffix in files for suffix in EXTENSION_SUFFIXES)]


if missing := missing_extensions(Path(__file__).parent):
    raise NotBuiltError(str(Path(__file__).parent), missing)

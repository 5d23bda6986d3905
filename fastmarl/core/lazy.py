"""Public names that are imported when they are first used: numba and torch take most of a second."""

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def imported_when_used(
    package: str, homes: Mapping[str, str], submodules: Collection[str] = ()
) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package.

    Args:
        package: its name.
        homes: name -> the module that defines it.
        submodules: names of the package's public modules.
    """

    def __getattr__(name: str) -> Any:
        if name in submodules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__

"""Public names: imported when they are first used, and written on the classes that carry them."""

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type[Any])


def public(module: str) -> Callable[[Kind], Kind]:
    """Return a decorator for a class that users import from `module`; it goes above all others.

    Pickles, tracebacks and docs show that path.
    """

    def with_path(kind: Kind) -> Kind:
        kind.__module__ = module
        return kind

    return with_path


def imported_when_used(
    package: str, homes: Mapping[str, str], submodules: Collection[str] = ()
) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package, which imports nothing before: numba and torch take most of a second.

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

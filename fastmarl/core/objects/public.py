"""Helpers for public names: lazy imports, and the public path of classes."""

import ast
import sys
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type[Any])


def public(module: str) -> Callable[[Kind], Kind]:
    """Return a decorator for classes that users import from `module`; it must be the outermost decorator.

    Pickles, tracebacks and docs then show that path.
    """

    def with_path(kind: Kind) -> Kind:
        kind.__module__ = module
        return kind

    return with_path


def imported_when_used(package: str, submodules: Collection[str] = ()) -> tuple[list[str], Callable[[str], Any]]:
    """Return `(__all__, __getattr__)` for a package that imports its names on first use.

    This avoids importing numba and torch, which takes most of a second. The names are those that the package imports
    for type checkers, under `if TYPE_CHECKING:`.

    Args:
        package: Name of the package.
        submodules: Names of its public submodules.

    Raises:
        ImportError: If the source file is missing because only bytecode was installed.
    """
    module: Any = sys.modules[package]
    source = module.__loader__.get_source(package)
    if source is None:
        raise ImportError(f"{package} needs its source file, but only bytecode is installed ({module.__file__}); "
                          f"install fastmarl with its .py files", name=package)  # fmt: skip
    guarded = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for each in guarded for node in each.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def __getattr__(name: str) -> Any:
        if name in submodules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(module, name, value)
        return value

    return sorted(homes), __getattr__

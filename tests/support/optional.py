"""Packages that not everybody has."""

import importlib
import os
from collections.abc import Callable, Container, Iterable
from types import ModuleType
from typing import Any

import pytest

COMPILE_AT_FIRST_USE = ("multigrid",)
"""Packages that take some 20 s in each process: their tests run in one."""


def needed(package: str) -> ModuleType:
    """Import a package; without it, the test or the whole test module is skipped, but in CI it has to be there."""
    return importlib.import_module(package) if os.environ.get("CI") else pytest.importorskip(package)


def params(kinds: Iterable[Any], package_of: Callable[[Any], str | None], exhaustive: Container[Any] = ()) -> list[Any]:
    """Return parameters for `parametrize`; each kind is marked with the optional package that it needs, if any."""
    further = {kind: [pytest.mark.exhaustive] if kind in exhaustive else [] for kind in kinds}
    return [pytest.param(kind, marks=[*marks, *_marks(package_of(kind))]) for kind, marks in further.items()]


def _marks(package: str | None) -> list[pytest.MarkDecorator]:
    if package is None:
        return []
    groups = [pytest.mark.xdist_group(package)] if package in COMPILE_AT_FIRST_USE else []
    return [pytest.mark.needs(package), *groups]

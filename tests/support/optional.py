"""Packages that not everybody has."""

import importlib
import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest


def needed(package: str) -> ModuleType:
    """Import what a whole test module is about: without it the module is skipped, but in CI it has to be there."""
    return importlib.import_module(package) if os.environ.get("CI") else pytest.importorskip(package)


def params(kinds: Iterable[Any], package_of: Callable[[Any], str | None]) -> list[Any]:
    """For `parametrize`: each kind with a mark that tells which optional package it needs, if any."""
    return [pytest.param(k, marks=[pytest.mark.needs(p)] if (p := package_of(k)) else []) for k in kinds]

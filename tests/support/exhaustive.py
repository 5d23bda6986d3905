"""Cases that `make test` leaves to `make test-exhaustive`."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest


def params(values: Iterable[Any], kept: Container[Any]) -> list[Any]:
    """Return parameters for `parametrize`; those that are not kept are marked."""
    return [value if value in kept else further([value])[0] for value in values]


def further(values: Iterable[Any]) -> list[Any]:
    """Return parameters for `parametrize`, all of them marked; tuples have one value for each argument."""
    return [
        pytest.param(*(value if type(value) is tuple else [value]), marks=pytest.mark.exhaustive) for value in values
    ]


def covering(cases: Mapping[str, Any]) -> set[str]:
    """Choose cases in which each value of each field occurs, and each item of `calls`; most new values first."""
    values_of = {name: set(_values(case)) for name, case in cases.items()}
    missing, chosen = set().union(*values_of.values()), set()
    while missing:
        best = max(values_of, key=lambda name: len(values_of[name] & missing))
        chosen.add(best)
        missing -= values_of.pop(best)
    return chosen


def _values(part: Any, path: str = "") -> Iterator[str]:
    if path.endswith(".calls"):
        yield from (f"{path} {call!r}" for call in part)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _values(getattr(part, field.name), f"{path}.{field.name}")
    elif isinstance(part, dict):
        for key, value in part.items():
            yield from _values(value, f"{path}[{key!r}]")
    else:
        yield f"{path} {part!r}"

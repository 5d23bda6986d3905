"""Cases that `make test` leaves to `make test-exhaustive`."""

from collections.abc import Container, Iterable
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

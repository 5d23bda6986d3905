"""A row of the table of RLlib's API, and what its check does."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.rllib_api.members import parameters_of

HAS_NO_DEFAULT = inspect.Parameter.empty


@dataclass(frozen=True)
class Row:
    """Something of RLlib's API.

    Args:
        group: the table that it is in.
        name: of the member, argument, key or field.
        check: runs it on both faces, and raises if the standalone one lacks it or answers otherwise.
    """

    group: str
    name: str
    check: Callable[[], Any]

    @property
    def key(self) -> str:
        return f"{self.group}: {self.name}"

    def error(self) -> Exception | None:
        """Run it, and return the error that it ends with; None: it holds."""
        try:
            self.check()
        except Exception as error:
            return error
        return None


def check_parameter(theirs: Any, ours: Any, name: str) -> None:
    """Raise AssertionError unless an argument of RLlib's method is one of ours, of the same kind and default."""
    want, got = parameters_of(theirs)[name], parameters_of(ours)[name]
    assert got.kind == want.kind, (got.kind, want.kind)
    assert want.default in (HAS_NO_DEFAULT, got.default), (got.default, want.default)
    if want.kind is want.POSITIONAL_OR_KEYWORD:
        places = [list(parameters_of(each)).index(name) for each in (theirs, ours)]
        assert places[0] == places[1], places


def check_added(theirs: Any, ours: Any) -> None:
    """Raise AssertionError if our method needs an argument that RLlib's does not have."""
    known = parameters_of(theirs)
    needed = [each.name for each in parameters_of(ours).values() if each.default is HAS_NO_DEFAULT]
    assert set(needed) <= known.keys(), needed

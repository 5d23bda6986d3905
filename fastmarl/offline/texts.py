"""Texts of agents' ids, each made once."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

MOST_TEXTS = 65_536  # that are kept


class Texts:
    """Remembers what `make` has made of ids, and of tuples of ids.

    The last one is told by its identity: compiled environments give the same tuple again and again.

    Args:
        make: text of an id.
    """

    def __init__(self, make: Callable[[Any], str]):
        self._make = make
        self._of: dict[Hashable, str] = {}
        self._last: tuple[Any, str] = object(), ""

    def __call__(self, id_: Hashable) -> str:
        last, text = self._last
        if id_ is not last:
            text = self._text(id_)
            self._last = id_, text
        return text

    def _text(self, id_: Hashable) -> str:
        key = _key(id_)
        text = self._of.get(key)
        if text is None:
            if len(self._of) >= MOST_TEXTS:
                self._of.clear()
            text = self._of[key] = self._make(id_)
        return text


def _key(id_: Any) -> Hashable:
    """Other keys for equal ids that have other texts, such as 0, False and 0.0; also inside of tuples and sets."""
    kind = type(id_)
    if kind is str:
        return id_
    if isinstance(id_, tuple):
        return kind, *map(_key, id_)
    if isinstance(id_, frozenset):
        return kind, frozenset(map(_key, id_))
    if isinstance(id_, float | np.generic):
        return kind, id_, str(id_)  # -0.0 is equal to 0.0
    return kind, id_

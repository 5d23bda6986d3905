"""Texts of agents' ids, each made once."""

from collections.abc import Callable, Hashable
from typing import Any

MOST_TEXTS = 65_536  # that are kept


class Texts:
    """Remembers what `make` has made of ids, and of tuples of ids.

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
    """Other keys for ids of other types, which may be equal, such as 0, False and 0.0; also inside of tuples."""
    kind = type(id_)
    if kind is str:
        return id_
    if kind is tuple:
        return tuple(map(_key, id_))
    return kind, id_

"""Names that somebody may have meant, for messages."""

import difflib
from collections.abc import Iterable

MOST = 3


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Those that begin with `name`; if there are none, those that are spelt like it, the likeliest first."""
    known = list(known)
    return [other for other in known if other.startswith(name)][:MOST] or difflib.get_close_matches(name, known, n=MOST)


def did_you_mean(names: Iterable[str]) -> str:
    """The end of a message, with these names; empty if there are none."""
    alternatives = " or ".join(map(repr, names))
    return f"; did you mean {alternatives}?" if alternatives else ""

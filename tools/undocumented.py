"""Lists parameters of the API reference that no docstring describes; `make docs` runs it, and fails if there are any.

A parameter is described by an entry in "Args:", by a sentence that names it, by a string under a dataclass's field, by
the method of a base class that this one overrides, or by the base class whose constructor is inherited.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"
IMPLIED = ("self", "cls", "args", "kwargs")


def main() -> int:
    """Print what is missing; returns the exit code."""
    logging.getLogger("griffe").setLevel(logging.ERROR)  # the build of the pages shows its warnings
    package = griffe.load("fastmarl", search_paths=[ROOT], resolve_aliases=True, docstring_parser="google")
    missing = [
        line
        for path, with_inherited in shown()
        for line in undocumented(package[path.removeprefix("fastmarl.")], path, with_inherited)
    ]
    print(*missing, sep="\n", end="\n" if missing else "")
    return int(bool(missing))


def shown() -> Iterator[tuple[str, bool]]:
    """Yield (path, True if with inherited members) for everything public that a page of the reference shows."""
    for page in sorted(PAGES.glob("*.md")):
        blocks = re.findall(r"^::: (\S+)((?:\n +.*)*)", page.read_text(), re.MULTILINE)
        yield from ((path, "inherited_members: true" in options) for path, options in blocks)


def undocumented(thing: Any, path: str, with_inherited: bool) -> Iterator[str]:
    """Yield a line for each function in `thing`, a function or a class, with parameters that are not described."""
    if thing.is_class:
        yield from _missing_of(thing, path, described=_fields(thing) | _of_constructor(thing))
        for name, method in (thing.all_members if with_inherited else thing.members).items():
            if method.is_function and method.docstring and not name.startswith("_"):  # others are not shown
                yield from _missing_of(method, f"{path}.{name}", described=_of_bases(thing, name))
    elif thing.is_function:
        yield from _missing_of(thing, path, described=set())


def _missing_of(callable_: Any, path: str, described: set[str]) -> Iterator[str]:
    described = described | _described(callable_)
    missing = [each.name for each in callable_.parameters if each.name not in {*IMPLIED, *described}]
    if missing:
        yield f"{callable_.relative_filepath}:{callable_.lineno}: {path} does not describe {', '.join(missing)}"


def _described(callable_: Any) -> set[str]:
    """Return the words of a docstring, which stand for the parameters that it names."""
    return set(re.findall(r"\w+", callable_.docstring.value)) if callable_.docstring else set()


def _fields(class_: Any) -> set[str]:
    fields = (class_.all_members.get(each.name) for each in class_.parameters)
    return {field.name for field in fields if field is not None and field.docstring}


def _of_constructor(class_: Any) -> set[str]:
    """Return the words of the base class that defines the constructor, if the class does not define its own."""
    bases = [] if "__init__" in class_.members else class_.mro()
    return next((_described(base) for base in bases if "__init__" in base.members), set())


def _of_bases(class_: Any, method: str) -> set[str]:
    bases = (base.members.get(method) for base in class_.mro())
    return {word for base in bases if base is not None for word in _described(base)}


if __name__ == "__main__":
    sys.exit(main())

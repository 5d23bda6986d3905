"""Find turns of phrase that make prose hard to read; `make lint` runs it, and fails if there are any."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("fastmarl", "benchmarks", "examples", "tools", "tests")
PAGES = ("*.md", "docs/**/*.md", ".github/**/*.md")
LEAST = 4  # words of a docstring
PHRASES = re.compile(
    r"\b(nobody|somebody|whoever|told|tells|anew|so many|so much|for who|what there is of|paid|to the bit)\b",
    re.IGNORECASE,
)
OPENINGS = re.compile(r"(What|Whether|Of|The same)\b")  # of docstrings


def main() -> int:
    """Print what it finds; returns the exit code."""
    found = [f"{path.relative_to(ROOT)}: {problem}" for path in paths() for problem in problems(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


def paths() -> Iterator[Path]:
    for pattern in PAGES:
        yield from ROOT.glob(pattern)
    for folder in CODE:
        yield from sorted((ROOT / folder).rglob("*.py"))


def problems(path: Path) -> Iterator[str]:
    """Describe each phrase in a page, or in the docstrings and comments of a Python file."""
    text = path.read_text()
    docstrings = [*docstrings_in(text)] if path.suffix == ".py" else []
    for docstring in docstrings:
        if OPENINGS.match(docstring):
            yield f"write another opening than {docstring[:40]!r}"
        if 0 < len(docstring.split()) < LEAST:
            yield f"{docstring!r} is too short to help; say more, or leave it out"
    for prose in [*docstrings, *comments_in(text)] if path.suffix == ".py" else [text]:
        yield from (f"write {match[0]!r} another way" for match in PHRASES.finditer(prose))


def docstrings_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def comments_in(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


if __name__ == "__main__":
    sys.exit(main())

"""Find turns of phrase that make prose and names hard to read; `make lint` runs it, and fails if there are any."""

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
NAMES = re.compile(r"(^|_)(anew|beside|hungry|nobody|paid|somebody|told|unheard|whoever)(_|$)")  # in snake case
TEST_NAMES = re.compile(
    r"^test_(\d+_)?(what|who)_"
    r"|_(tells?|courses?|those_who|is_said|so_it_is|as_a_whole|under_way|to_the_bit)(_|$)"
    r"|_whole$"
)
TURNS = re.compile(  # which are rare in the docstrings of Gymnasium, torch, NumPy and RLlib
    r"\b(as rllib's|(has|have|had) ended|of (its|their|your|a) own|under way|in force|from now on|numbers of|of one"
    r"|lack(s|ed|ing)?|folders?|can't|(agents|episodes|envs|rows|runners|modules|columns) that)\b",
    re.IGNORECASE,
)
MOST_TURNS = 25  # per 10,000 words of docstrings and pages
CODE_IN_PROSE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|https?://\S+|>>>.*", re.DOTALL)


def main() -> int:
    """Print what it finds; returns the exit code."""
    found = [f"{path.relative_to(ROOT)}: {problem}" for path in paths() for problem in problems(path)]
    found += too_many_turns()
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


def paths() -> Iterator[Path]:
    for pattern in PAGES:
        yield from ROOT.glob(pattern)
    for folder in CODE:
        yield from sorted((ROOT / folder).rglob("*.py"))


def too_many_turns() -> Iterator[str]:
    pages = [path.read_text() for pattern in ("*.md", "docs/**/*.md") for path in ROOT.glob(pattern)]
    sources = [path.read_text() for path in (ROOT / "fastmarl").rglob("*.py")]
    prose = CODE_IN_PROSE.sub(" ", "\n".join([*pages, *(text for each in sources for text in docstrings_in(each))]))
    rate = 1e4 * len(TURNS.findall(prose)) / len(re.findall(r"[A-Za-z']+", prose))
    if rate > MOST_TURNS:
        yield f"{rate:.1f} of 10,000 words are turns of phrase that are rare elsewhere, {MOST_TURNS} at most: see TURNS"


def problems(path: Path) -> Iterator[str]:
    """Describe each phrase in a page, or in the docstrings, comments and identifiers of a Python file."""
    text = path.read_text()
    docstrings = [*docstrings_in(text)] if path.suffix == ".py" else []
    for docstring in docstrings:
        if OPENINGS.match(docstring):
            yield f"write another opening than {docstring[:40]!r}"
        if 0 < len(docstring.split()) < LEAST:
            yield f"{docstring!r} is too short to help; say more, or leave it out"
    for prose in [*docstrings, *comments_in(text)] if path.suffix == ".py" else [text]:
        yield from (f"write {match[0]!r} another way" for match in PHRASES.finditer(prose))
    for line, name in sorted(identifiers_in(text)) if path.suffix == ".py" else []:
        words = re.sub(r"(?=[A-Z][a-z])", "_", name).lower()
        if NAMES.search(words) or (words.startswith("test_") and TEST_NAMES.search(words)):
            yield f"line {line}: find another name than {name}"


def docstrings_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def identifiers_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each definition, parameter, and assigned variable or attribute."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def comments_in(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


if __name__ == "__main__":
    sys.exit(main())

"""Count turns of phrase that make prose hard to read; `make lint` runs it.

The numbers in `MOST` may only fall: a change that adds to one fails, and a change that reduces one lowers it.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("fastmarl", "benchmarks", "examples", "tools", "tests")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
SHORT = 3  # words
PHRASES = {  # of docstrings, comments and pages
    "nobody, somebody, whoever": r"\b(nobody|somebody|whoever)\b",
    "told, tells": r"\b(told|tells)\b",
    "anew": r"\banew\b",
    "so many": r"\bso (many|much)\b",
    "for who": r"\bfor who\b",
    "what there is of": r"\bwhat there is of\b",
    "paid for received": r"\bpaid\b",
    "to the bit": r"\bto the bit\b",
}
BEGINNINGS = ("What", "Whether", "Of", "The same")  # of docstrings
MOST = {
    "begins with 'Of'": 2,
    "begins with 'The same'": 1,
    "docstring of three words or fewer": 4,
    "nobody, somebody, whoever": 1,
    "paid for received": 1,
    "so many": 1,
    "told, tells": 1,
}


def main() -> int:
    """Compare the counts with `MOST`; returns the exit code."""
    found = counts()
    for name in found.keys() | MOST.keys():
        if found[name] > MOST.get(name, 0):
            print(f"prose: {found[name]} times {name!r}, {MOST.get(name, 0)} before; write it another way")
        elif found[name] < MOST.get(name, 0):
            print(f"prose: {found[name]} times {name!r}: lower its number in tools/prose.py, now {MOST[name]}")
    return int(found != MOST)


def counts() -> Counter[str]:
    """Return the number of each phrase, beginning and short docstring."""
    found: Counter[str] = Counter()
    texts = [page.read_text() for pattern in PAGES for page in ROOT.glob(pattern)]
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        for text in docstrings(source):
            found.update(f"begins with {word!r}" for word in BEGINNINGS if re.match(rf"{word}\b", text))
            found["docstring of three words or fewer"] += 1 <= len(text.split()) <= SHORT
            texts.append(text)
        texts.extend(comments(source))
    for name, phrase in PHRASES.items():
        found[name] = sum(len(re.findall(phrase, text, re.IGNORECASE)) for text in texts)
    return +found  # without zeros


def docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


if __name__ == "__main__":
    sys.exit(main())

"""Text tables for the terminal and in Markdown, with the same format in all commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from fastmarl.core.objects.html_table import html_table

Columns = Mapping[str, tuple[str, str]]  # key of a figure -> (heading, format)


@dataclass(frozen=True)
class Table:
    """A table whose first column is left-aligned and whose other columns are right-aligned."""

    title: str
    heading: Sequence[str]
    """One heading per column, possibly with line breaks; empty for a table without headings."""
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    """Lines of text below the table."""

    @classmethod
    def of(cls, title: str, columns: Columns, figures: Iterable[Mapping[str, Any]], notes: Sequence[str] = ()) -> Table:
        """Build a table with one row per dict of figures; None is shown as a dash."""
        rows = [
            ["-" if row[key] is None else format(row[key], form) for key, (_, form) in columns.items()]
            for row in figures
        ]
        return cls(title, [heading for heading, _ in columns.values()], rows, notes)

    def as_text(self) -> str:
        """Format the table as plain text."""
        upwards = (text.split("\n")[::-1] for text in self.heading)  # so that all headings end on the last line
        heading = [*zip_longest(*upwards, fillvalue="")][::-1]
        first, *others = [max(map(len, column)) for column in zip(*heading, *self.rows, strict=True)]
        form = "  ".join([f"{{:{first}}}", *(f"{{:>{width}}}" for width in others)])
        lines = [form.format(*row).rstrip() for row in (*heading, *self.rows)]
        if heading:
            lines.insert(len(heading), "-" * (first + sum(2 + width for width in others)))
        return "\n".join([*([self.title] if self.title else []), *lines, *self.notes])

    def as_markdown(self) -> str:
        """Format the table, which must have a heading, as a Markdown section."""
        heading, *rows = [[_in_a_cell(text) for text in row] for row in (self.heading, *self.rows)]
        lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join([*([f"## {self.title}"] if self.title else []), table, *self.notes])

    def _repr_html_(self) -> str:
        return html_table(self.heading, self.rows, title=self.title, notes=self.notes)


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

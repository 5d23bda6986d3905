"""A table of texts, which every command shows in the same way, on the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from fastmarl.core.html_table import html_table

Columns = Mapping[str, tuple[str, str]]  # key of a figure -> (heading, format)


@dataclass(frozen=True)
class Table:
    """The first column is aligned to the left, the others to the right."""

    title: str
    heading: Sequence[str]
    """Of each column; of several lines where there are line breaks. Empty: the table has none."""
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    """Lines below the table."""

    @classmethod
    def of(cls, title: str, columns: Columns, figures: Iterable[Mapping[str, Any]], notes: Sequence[str] = ()) -> Table:
        """A row of each dict of figures; None is shown as a dash."""
        rows = [
            ["-" if row[key] is None else format(row[key], form) for key, (_, form) in columns.items()]
            for row in figures
        ]
        return cls(title, [heading for heading, _ in columns.values()], rows, notes)

    def as_text(self) -> str:
        """The table in plain text."""
        upwards = (text.split("\n")[::-1] for text in self.heading)  # so that all columns end in the last line
        heading = [*zip_longest(*upwards, fillvalue="")][::-1]
        first, *others = [max(map(len, column)) for column in zip(*heading, *self.rows, strict=True)]
        form = "  ".join([f"{{:{first}}}", *(f"{{:>{width}}}" for width in others)])
        lines = [form.format(*row).rstrip() for row in (*heading, *self.rows)]
        if heading:
            lines.insert(len(heading), "-" * (first + sum(2 + width for width in others)))
        return "\n".join([*([self.title] if self.title else []), *lines, *self.notes])

    def as_markdown(self) -> str:
        """A section with the table; it must have a heading."""
        heading, *rows = [[_in_a_cell(text) for text in row] for row in (self.heading, *self.rows)]
        lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join([*([f"## {self.title}"] if self.title else []), table, *self.notes])

    def _repr_html_(self) -> str:
        return html_table(self.heading, self.rows, title=self.title, notes=self.notes)


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

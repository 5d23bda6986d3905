"""HTML tables, which notebooks display in place of an object's text."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(
    heading: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", notes: Sequence[str] = ()
) -> str:
    """Return an HTML table with escaped text; the first column is left-aligned, all others are right-aligned.

    Args:
        heading: One title per column, or none.
        notes: Lines to show below the table.
    """
    parts = [f"<b>{escape(title)}</b>"] if title else []
    parts.append("<table>")
    if heading:
        parts.append(f"<thead>{_row('th', heading)}</thead>")
    parts.append(f"<tbody>{''.join(_row('td', row) for row in rows)}</tbody></table>")
    parts += [f"<small>{escape(note)}</small><br>" for note in notes]
    return f"<div>{''.join(parts)}</div>"


def _row(tag: str, cells: Sequence[object]) -> str:
    sides = ["left", *["right"] * (len(cells) - 1)]
    texts = [
        f'<{tag} style="text-align: {side}">{escape(str(cell))}</{tag}>'
        for side, cell in zip(sides, cells, strict=True)
    ]
    return f"<tr>{''.join(texts)}</tr>"

"""Markdown tables of the members that differ from RLlib's, which pages of the documentation show."""

from collections import defaultdict
from collections.abc import Mapping


def table(texts: Mapping[str, str]) -> str:
    """Return a table of members with the text about each; members with the same text share a row."""
    members = defaultdict(list)
    for name, text in texts.items():
        members[text].append(name if "`" in name else f"`{name}`")
    rows = [f"| {', '.join(names)} | {text} |" for text, names in members.items()]
    return "\n".join(["| member | here |", "|---|---|", *rows])

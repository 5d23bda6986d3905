"""Makes docs/rllib_api.md of the table: `python tests/support/rllib_api/page.py` in the project's folder.

The page says of each row what `REASONS` says; tests/rllib/test_api_table.py runs the rows, and holds `REASONS` to that.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.rllib_api.rows import Row  # noqa: E402
from support.rllib_api.table import NOTES, REASONS, all_rows  # noqa: E402

PAGE = ROOT / "docs" / "rllib_api.md"
COMMAND = "python tests/support/rllib_api/page.py"
HEAD = """# RLlib's API, member by member

This page compares the **standalone** runner, `fastmarl.MultiAgentEnvRunner`, and its episodes with all public members
of RLlib's `MultiAgentEnvRunner`, `MultiAgentEpisode` and `SingleAgentEpisode` in Ray {version}: arguments, keys of
metrics and states, arguments of callbacks, and the config fields that RLlib's runner reads. The drop-in,
`fastmarl.rllib.MultiAgentEnvRunner`, is a subclass of RLlib's and has them all.

`tests/rllib/test_api_table.py` reads the names from RLlib's source, runs each row on both runners, and compares
answers, outcomes and numbers; this page is generated from it. Where [RLlib is wrong](differences.md), a row holds if
`fastmarl` is right, with a note.

{totals}

[From RLlib's runner to a loop of your own](from_rllib.md) shows the API in use.
"""
ABOUT = {
    "MultiAgentEnvRunner": "The constructor takes the arguments that RLlib's `EnvRunnerGroup` passes.",
    "Metrics": "Keys of `get_metrics()` as an Algorithm reports them. Numbers are equal; times are above 0.",
    "State": "Keys of `get_state()`, which `set_state()` takes.",
    "Callbacks": "Events of an env runner, and their keyword arguments.",
    "Config": "Each field is set in both configs and changes both runners alike; a few are only read.",
    "Ray 2.40 to 2.47": "Members that only these versions had, and `cut()`. The tables above cover the rest.",
    "Uses of RLlibCallback": "Calls made by subclasses of `RLlibCallback`, each tested in a run.",
}


def page(rows: Sequence[Row]) -> str:
    """Return the text of the page."""
    import ray

    groups = {group: list(members) for group, members in groupby(rows, lambda row: row.group)}
    parts = [HEAD.format(version=series(ray.__version__), totals="\n".join(totals(groups)))]
    for group, members in groups.items():
        about = ABOUT.get(group, "").format(version=series(ray.__version__))
        parts.append("\n".join([f"\n## {group}\n", *([f"{about}\n"] if about else []), *lines(members)]) + "\n")
    return "".join(parts)


def series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def totals(groups: dict[str, list[Row]]) -> Iterator[str]:
    yield "| table | rows | hold | |"
    yield "|---|---|---|---|"
    everything = [row for members in groups.values() for row in members]
    for name, members in {**groups, "**all**": everything}.items():
        n_holding = sum(row.key not in REASONS for row in members)
        yield f"| {name} | {len(members)} | {n_holding} | {100 * n_holding / len(members):.1f} % |"


def lines(rows: list[Row]) -> Iterator[str]:
    """Rows of a table: a method and those of its arguments about which there is nothing to say are one line."""
    yield "| member | holds | |"
    yield "|---|---|---|"
    plain = [row.name for row in rows if row.key not in REASONS and row.key not in NOTES]
    for row in rows:
        method, bracket, _ = row.name.partition("(")
        if row.key in REASONS:
            yield f"| {code(row.name)} | no | {REASONS[row.key]} |"
        elif row.key in NOTES:
            yield f"| {code(row.name)} | yes | {NOTES[row.key]} |"
        elif not bracket or method not in plain:
            arguments = [name.split("(")[1][:-1] for name in plain if name.startswith(f"{row.name}(")]
            together = f"({', '.join(arguments)})" if arguments else ""
            yield f"| {code(row.name + together)} | yes | |"


def code(name: str) -> str:
    """Set it as code, but for a name that says itself what of it is code."""
    return name if "`" in name else f"`{name}`"


if __name__ == "__main__":
    PAGE.write_text(page(all_rows()), encoding="utf-8")

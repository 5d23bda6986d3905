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

For the **standalone** runner, `fastmarl.MultiAgentEnvRunner`, and its episodes: all public members of RLlib's
`MultiAgentEnvRunner`, `MultiAgentEpisode` and `SingleAgentEpisode` in Ray {version}, their arguments, the keys of
metrics and states, what callbacks are given, and the fields of the config that RLlib's runner reads, by itself or
through the config's methods. The drop-in, `fastmarl.rllib.MultiAgentEnvRunner`, is a subclass of RLlib's and has all.

`tests/rllib/test_api_table.py` reads the names from RLlib's source, runs each row on both faces, and compares answers,
outcomes and numbers. Where RLlib is wrong ([Differences](differences.md)), a row holds if `fastmarl` is right, and a
note says so. The test fails if this page is not what it finds.

{totals}

[From RLlib's runner to a loop of your own](from_rllib.md) shows the API at work.
"""
ABOUT = {
    "MultiAgentEnvRunner": "Arguments of the constructor are those that RLlib's `EnvRunnerGroup` gives.",
    "Metrics": "Keys of `get_metrics()` as an Algorithm reports them. Numbers are equal, times are above 0.",
    "State": "Keys of `get_state()`, which `set_state()` takes.",
    "Callbacks": "Events of an env runner, and their keyword arguments.",
    "Config": "Each field is set in both configs, and changes what both runners do alike; a few are only read.",
    "Ray 2.40 to 2.47": "What these versions had beside that, and `cut()`. All else of theirs is in the tables above.",
    "Uses of RLlibCallback": "What classes derived from `RLlibCallback` do, each in a run.",
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

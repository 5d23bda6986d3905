"""Makes docs/old_stack_api.md of the table: `python tests/support/legacy_api/page.py` in the project's folder.

tests/rllib/test_legacy_api_table.py runs the rows, and compares the page with them.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.legacy_api.table import NOT_THERE, NOTES, Row, all_rows  # noqa: E402

PAGE = ROOT / "docs" / "old_stack_api.md"
COMMAND = "python tests/support/legacy_api/page.py"
HEAD = """# RLlib's old API stack, member by member

This page compares [`fastmarl.legacy`](old_stack.md#without-ray), which needs no Ray, with the classes of RLlib's old
API stack in Ray {version}: those that a loop over a `RolloutWorker` makes, gets from it, or gets in callbacks.

`tests/rllib/test_legacy_api_table.py` reads the names from RLlib's source: all public methods, properties, constants
and attributes that RLlib's modules define, the constructors of classes that programs make themselves, and the events of
callbacks that the old stack calls. Of policies, the table has the members of RLlib's base class. Left out are members
for TensorFlow (`tf_input_ops`, `import_model_from_h5`), deprecated methods that RLlib has made errors, and `par_iter_*`
of Ray's former `ParallelIterator`.

The test uses each member on both sides and compares the answers (of dicts all keys, nested, and of batches the dtypes),
and it requires the arguments of RLlib's methods. A note says where RLlib's answer is another, or an error.

| class | members | hold |
|---|---|---|
{totals}
"""


def page(rows: Sequence[Row]) -> str:
    """Return the text of the page."""
    import ray

    version = ".".join(ray.__version__.split(".")[:2])
    groups = {cls: list(members) for cls, members in groupby(rows, lambda row: row.cls)}
    parts = [HEAD.format(version=version, totals="\n".join(_totals(groups)))]
    for cls, members in groups.items():
        here = [row for row in members if row.key not in NOT_THERE]
        plain = [f"`{row.name}`" for row in here if row.key not in NOTES]
        noted = [f"| `{row.name}` | {NOTES[row.key]} |" for row in here if row.key in NOTES]
        parts.append("\n".join([f"\n## {cls}\n", f"As RLlib's: {', '.join(plain)}.\n", *_table("note", noted)]))
    rest = [f"| `{key}` | {reason} |" for key, reason in NOT_THERE.items()]
    parts.append("\n".join(["\n## Not there\n", *_table("reason", rest)]))
    return "".join(parts)


def _table(about: str, lines: list[str]) -> list[str]:
    return [f"| member | {about} |", "|---|---|", *lines, ""] if lines else []


def _totals(groups: dict[str, list[Row]]) -> Iterator[str]:
    everything = [row for members in groups.values() for row in members]
    for name, members in {**groups, "**all**": everything}.items():
        yield f"| {name} | {len(members)} | {sum(row.key not in NOT_THERE for row in members)} |"


if __name__ == "__main__":
    PAGE.write_text(page(all_rows()), encoding="utf-8")

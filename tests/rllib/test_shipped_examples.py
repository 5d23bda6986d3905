"""RLlib's own multi-agent examples, sampled by RLlib's class and ours; docs/rllib.md has their number."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rllib.typical.shipped import EXAMPLES, NOT_TRIED

DOCS = Path(__file__).parents[2] / "docs" / "rllib.md"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_all_examples_are_accelerated_and_equal() -> None:
    """In a process of its own, from which those of the examples are forked: Ray may run in this one."""
    command = [sys.executable, "-m", "rllib.typical.shipped"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=600
    ).stdout
    rows = [line for line in printed.splitlines() if line.startswith("| `")]
    assert len(rows) == len(EXAMPLES) + len(NOT_TRIED)
    assert all(row.endswith("| yes | yes |") for row in rows[: len(EXAMPLES)]), printed
    assert f"Tests sample {len(EXAMPLES)} of RLlib's multi-agent examples" in DOCS.read_text(encoding="utf-8")

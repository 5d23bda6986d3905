"""RLlib's own multi-agent examples, sampled by RLlib's class and ours; docs/rllib.md has the table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rllib.typical.shipped import EXAMPLES, NOT_TRIED

DOCS = Path(__file__).parents[2] / "docs" / "rllib.md"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_docs_say_which_examples_are_accelerated() -> None:
    """In a process of its own, from which those of the examples are forked: Ray may run in this one."""
    command = [sys.executable, "-m", "rllib.typical.shipped"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=600
    ).stdout
    rows = [line for line in printed.splitlines() if line.startswith("| `")]
    assert len(rows) == len(EXAMPLES) + len(NOT_TRIED)
    documented = DOCS.read_text(encoding="utf-8").splitlines()
    assert [row for row in rows if row not in documented] == [], printed

"""After an interrupt (Ctrl-C) a runner and a group of runners go on, and a `BackgroundSampler` is closed; none of them
hands out anything wrong, or leaves anything behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "n", "n_checked"),  # chunks or batches for each interrupt
    [
        ("group", 4, 0.5),
        pytest.param("background", 4, 0.5, marks=pytest.mark.exhaustive),
        pytest.param("ray", 4, 0.5, marks=[pytest.mark.needs("ray"), pytest.mark.exhaustive]),
        pytest.param("runner", 8, 10, marks=[pytest.mark.needs("pyarrow"), pytest.mark.exhaustive]),
    ],
)
def test_real_interrupts_at_random_times_arrive(kind, n, n_checked, random_seed):
    n = int(os.environ.get("FASTMARL_SIGINTS", n))
    command = [sys.executable, "-m", "support.sigints", kind, str(n), str(random_seed)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert not report["wrong"]
    assert report["interrupts"] == report["arrived"] == n
    assert report["checked"] > n_checked * n

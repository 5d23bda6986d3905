"""After an interrupt (Ctrl-C) a group of runners goes on, and a `BackgroundSampler` is closed; neither hands out wrong
batches, or leaves anything behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.exhaustive import further

N_SIGINTS = os.environ.get("FASTMARL_SIGINTS", "4")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["group", *further(["background"]), pytest.param("ray", marks=[pytest.mark.needs("ray"), pytest.mark.exhaustive])],
)
def test_real_interrupts_at_random_times_arrive(kind, random_seed):
    command = [sys.executable, "-m", "support.sigints_of_batches", kind, N_SIGINTS, str(random_seed)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert not report["wrong"]
    assert report["interrupts"] == report["arrived"] == int(N_SIGINTS)
    assert report["batches"] > int(N_SIGINTS) // 2

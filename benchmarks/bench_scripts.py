"""The measurements that are scripts, as short as they can be: their commands work."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = [
    "benchmarks/bench_background.py --rounds 1 --iterations 1 --envs fastmarl.simple_spread --epochs 1",
    "benchmarks/bench_distributed.py --rounds 1 --parts calls fakes",
    "benchmarks/bench_learning.py --rounds 1 --rows 512 --sizes 256",
    "benchmarks/bench_offline.py --rounds 1 --envs fastmarl.simple_spread --compression zstd",
    "benchmarks/bench_recorder.py --rounds 1 --calls 1 --envs fastmarl.simple_spread",
    "benchmarks/bench_recurrent.py --rounds 1 --envs 4",
    "benchmarks/bench_rllib_old_stack.py --rounds 1 --steps 10 'CartPole 2x1'",
    "-m benchmarks.bench_rllib_pieces --rounds 1 --kinds plain",
    "benchmarks/bench_team_learners.py --rounds 1",
    "benchmarks/memory.py 1000",
    "benchmarks/memory.py --league 2",
    "benchmarks/memory.py --env-workers",
]


@pytest.mark.parametrize("command", COMMANDS)
def bench_script(command):
    subprocess.run([sys.executable, *shlex.split(command)], cwd=Path(__file__).parents[1], check=True, timeout=300)

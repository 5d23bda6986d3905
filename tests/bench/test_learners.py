"""Benchmarks of learners: what scripts of benchmarks/learners share, and tables of given numbers."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import bench_jax, bench_time_to_return

LEARNERS = Path(bench_time_to_return.__file__).parent / "learners"


def run_progress(code: str) -> list[dict]:
    """Lines that a `Progress` printed, where neither PyTorch nor mpe2 can be imported, as with JAX."""
    begin = "import sys; sys.modules.update(torch=None, mpe2=None); import common\n"
    command = [sys.executable, "-c", begin + code, "--target", "-45", "--max-steps", "1000", "--seed", "3"]
    printed = subprocess.run(command, cwd=LEARNERS, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def test_a_run_is_over_at_the_target_once_the_window_is_full():
    (said,) = run_progress("""
progress = common.Progress(common.parser().parse_args(), compilation=2.5)
progress.add(100, [-50.0] * 10 + [-44.0] * (common.WINDOW - 11))
assert not progress.is_over
progress.add(100, [-44.0])  # the mean of the window is -44.3
assert progress.is_over
""")
    assert said["reached"] and said["mean_return"] == -44.3
    assert (said["env_steps"], said["compilation"]) == (200, 2.5)


def test_a_run_is_given_up_after_its_env_steps():
    (said,) = run_progress("""
progress = common.Progress(common.parser().parse_args())
progress.add(999, [-46.0] * common.WINDOW)
assert not progress.is_over
progress.add(1, [])
assert progress.is_over
""")
    assert not said["reached"] and said["over"]


def test_the_table_of_times_to_a_return_lists_compilation_separately():
    def found(cpu_seconds: float, compilation: float) -> dict:
        return {"cpu_seconds": cpu_seconds, "compilation": compilation, "env_steps": 1600, "reached": True}

    slow = [found(8.0, 0.0), found(4.0, 0.0), found(90.0, 0.0)]
    table = bench_time_to_return.table({"ours": slow, "JAX": [found(2.0, 9.0)] * 3})
    assert table.splitlines()[2:] == [
        "| JAX | 2 s | 1.0 | 9 s | 1,600 | 3 of 3 |",
        "| ours | 8 s | 4.0 | 0 s | 1,600 | 3 of 3 |",
    ]


def test_the_table_of_iterations_has_medians_of_turns():
    turns = [dict.fromkeys(bench_jax.PARTS, value) for value in (1.0, 30.0, 2.0)]
    assert bench_jax.table({("JAX", 128): turns}).splitlines()[2:] == [
        "| JAX | 128 | 2.0 ms | 2.0 ms | 2.0 ms | 2.0 s |"
    ]

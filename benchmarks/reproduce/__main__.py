"""Train EPyMARL's algorithms on its tasks, evaluate them, and compare their returns with the published ones.

    python -m benchmarks.reproduce --tasks lbf-8x8-2p-2f-coop --algorithms ippo --seeds 0

Each run has a folder in runs/reproduce. Interrupted runs are resumed, and finished ones are not repeated.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from benchmarks.reproduce.report import table
from benchmarks.reproduce.tasks import ALGORITHMS, TASKS, Task
from fastmarl.cli.runs import load_run
from fastmarl.core.checkpoint.sealed_json import replace_file
from fastmarl.play.arena.evaluation import evaluate
from fastmarl.training.run_folder import CURVE, RunFolder, steps_of

EPISODES, SEED = 1000, 1000  # of an evaluation of the last policy
EVALUATED = "evaluation/episode_return_mean"
FOLDER, RESULT = Path("runs/reproduce"), "result.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, metavar="TASK", default=[*TASKS], help=", ".join(TASKS))
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=[*ALGORITHMS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default %(default)s)")
    args = parser.parse_args()
    runs = [run for run in product(args.seeds, args.tasks, args.algorithms) if run[2] in TASKS[run[1]].published]
    pool = ThreadPoolExecutor(args.jobs)
    try:
        results = [*pool.map(lambda run: result_of(*run), runs)]
    except KeyboardInterrupt:  # it also reaches the runs, which save their state
        pool.shutdown(cancel_futures=True)
        print("interrupted; the same command continues", file=sys.stderr)
        return 130
    print(table([result for result in results if result is not None]))
    return 0 if all(results) else 1


def result_of(seed: int, task: str, algorithm: str) -> dict | None:
    """Train and evaluate, unless it was done before; returns None if that failed or was interrupted."""
    path = FOLDER / f"{task}-{algorithm}-seed{seed}"
    if not (path / RESULT).exists():
        if train(path, TASKS[task], seed, algorithm) != 0:
            return None
        with (path / CURVE).open() as file:
            rows = [*csv.DictReader(file)]
        result = {
            "task": task,
            "algorithm": algorithm,
            "seed": seed,
            "cpu_seconds": float(rows[-1]["cpu_seconds"]),
            "curve": [[int(row["step"]), float(row["episode_return_mean"])] for row in rows],
            "evaluations": [[int(row["step"]), float(row[EVALUATED])] for row in rows if row[EVALUATED]],
            "sampled": played(path, explore=True),
            "greedy": played(path, explore=False),
        }
        replace_file(path / RESULT, json.dumps(result).encode())  # whole or not at all, if the process is killed
    return json.loads((path / RESULT).read_text())


def train(path: Path, task: Task, seed: int, algorithm: str) -> int:
    """Start or resume a run in a process with one thread, unless it is finished; returns the exit code."""
    checkpoints = RunFolder(path).checkpoints() if path.exists() else []
    if checkpoints and (steps_of(checkpoints[0]) or 0) >= task.steps_of(algorithm):
        return 0
    if checkpoints:
        arguments = ["--resume", str(path)]
    else:
        arguments = [*task.arguments(algorithm), "--folder", str(path), "--overwrite", "--seed", str(seed)]
    command = [sys.executable, "-m", "fastmarl", "train", *arguments]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


def played(path: Path, *, explore: bool) -> list[float]:
    """Return the mean and standard error of the returns of a run's last checkpoint."""
    policy, options = load_run(path, trust=False)
    found = evaluate(policy, options.env, episodes=EPISODES, explore=explore, env_config=options.env_config,
                     num_envs_per_env_runner=100, seed=SEED)  # fmt: skip
    return [found.mean, found.standard_error]


if __name__ == "__main__":
    sys.exit(main())

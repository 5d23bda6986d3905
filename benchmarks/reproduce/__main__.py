"""Train EPyMARL's algorithms on its tasks, evaluate them, and compare their returns with the published ones.

    python -m benchmarks.reproduce --tasks lbf-8x8-2p-2f-coop --algorithms ippo --seeds 0

First, it measures how long the runs will take. Each run has a folder in runs/reproduce. Interrupted runs are resumed,
and finished ones are not repeated.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.reproduce.report import table
from benchmarks.reproduce.tasks import ALGORITHMS, TASKS, Task
from fastmarl.cli.arguments import env_of
from fastmarl.cli.runs import example, load_run
from fastmarl.cli.train_options import parse_options
from fastmarl.core.checkpoint.sealed_json import replace_file
from fastmarl.core.processes.cores import usable_cores
from fastmarl.play.arena.evaluation import evaluate
from fastmarl.training.run_folder import CURVE, RunFolder, steps_of

MEASURED = 100_000  # env steps, before the runs
EPISODES, SEED = 1000, 1000  # of an evaluation of the last policy
EVALUATED = "evaluation/episode_return_mean"
FOLDER, RESULT = Path("runs/reproduce"), "result.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, metavar="TASK", default=[*TASKS], help=", ".join(TASKS))
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=[*ALGORITHMS])
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 0 to 4 in MPE, 0 to 2 elsewhere")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="runs at the same time (default: one on each "
                        "core)")  # fmt: skip
    args = parser.parse_args()
    runs = [
        (seed, task, algorithm)
        for task, algorithm in product(args.tasks, args.algorithms)
        for seed in args.seeds or range(TASKS[task].seeds)
        if algorithm in TASKS[task].algorithms
    ]
    runs.sort(key=lambda run: run[0])
    pool = ThreadPoolExecutor(args.jobs)
    try:
        show_duration([run for run in runs if not (folder_of(*run) / RESULT).exists()], pool, args.jobs)
        results = [*pool.map(lambda run: result_of(*run), runs)]
    except KeyboardInterrupt:  # it also reaches the runs, which save their state
        pool.shutdown(cancel_futures=True)
        print("interrupted; the same command continues", file=sys.stderr)
        return 130
    print(table([result for result in results if result is not None]))
    return 0 if all(results) else 1


def folder_of(seed: int, task: str, algorithm: str) -> Path:
    return FOLDER / f"{task}-{algorithm}-seed{seed}"


def show_duration(runs: list[tuple[int, str, str]], pool: ThreadPoolExecutor, jobs: int) -> None:
    """Print how long runs take from their beginning, estimated from the first env steps of each task and algorithm."""
    kinds = list(dict.fromkeys((task, algorithm) for _, task, algorithm in runs))
    hours = dict(zip(kinds, pool.map(lambda kind: hours_of(*kind), kinds), strict=True))
    for task, algorithm in kinds:
        print(f"{task} {algorithm}: about {hours[task, algorithm]:.2f} CPU hours a run", flush=True)
    total = sum(hours[task, algorithm] for _, task, algorithm in runs)
    print(f"{len(runs)} runs: about {total / jobs:.1f} hours, {jobs} at a time", flush=True)


def hours_of(task: str, algorithm: str) -> float:
    """Measure the first hundredth of a run, or less; returns the CPU hours of the whole."""
    steps = TASKS[task].steps_of(algorithm)
    with tempfile.TemporaryDirectory() as folder:
        short = ["--folder", folder, "--overwrite", "--steps", str(min(steps // 100, MEASURED)), "--episodes", "1"]
        if fastmarl_train([*TASKS[task].arguments(algorithm), *short], stdout=subprocess.DEVNULL) != 0:
            raise SystemExit(f"the first env steps of {algorithm} on {task} failed, see above")
        rows = rows_of(Path(folder))
    first, last = ((float(row["cpu_seconds"]), int(row["step"])) for row in (rows[0], rows[-1]))
    return (last[0] - first[0]) / (last[1] - first[1]) * steps / 3600


def result_of(seed: int, task: str, algorithm: str) -> dict | None:
    """Train and evaluate, unless it was done before; returns None if that failed or was interrupted."""
    path = folder_of(seed, task, algorithm)
    if path.exists():
        check_options(path, TASKS[task], algorithm)
    if not (path / RESULT).exists():
        if train(path, TASKS[task], seed, algorithm) != 0:
            return None
        rows = rows_of(path)
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


def check_options(path: Path, task: Task, algorithm: str) -> None:
    """Exit if a run was started with other options than the task now has."""
    name, *arguments = task.arguments(algorithm)
    expected = vars(parse_options(example(name).ALGORITHM, arguments)) | {"seed": None}
    found = RunFolder(path).description()["options"] | {"seed": None}
    if other := [option for option, value in found.items() if value != expected.get(option)]:
        raise SystemExit(f"{path} was trained with other values of {', '.join(other)}; move it away to train again")


def train(path: Path, task: Task, seed: int, algorithm: str) -> int:
    """Start or resume a run in a process with one thread, unless it is finished; returns the exit code."""
    checkpoints = RunFolder(path).checkpoints() if path.exists() else []
    if checkpoints and (steps_of(checkpoints[0]) or 0) >= task.steps_of(algorithm):
        return 0
    if checkpoints:
        arguments = ["--resume", str(path)]
    else:
        arguments = [*task.arguments(algorithm), "--folder", str(path), "--overwrite", "--seed", str(seed)]
    return fastmarl_train(arguments)


def fastmarl_train(arguments: list[str], **options: Any) -> int:
    command = [sys.executable, "-m", "fastmarl", "train", *arguments]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options).returncode


def rows_of(path: Path) -> list[dict[str, str]]:
    with (path / CURVE).open() as file:
        return [*csv.DictReader(file)]


def played(path: Path, *, explore: bool) -> list[float]:
    """Return the mean and standard error of the returns of a run's last checkpoint."""
    policy, options = load_run(path, trust=False)
    found = evaluate(policy, env_of(options.env, options.max_steps), episodes=EPISODES, explore=explore,
                     env_config=options.env_config, num_envs_per_env_runner=100, seed=SEED)  # fmt: skip
    return [found.mean, found.standard_error]


if __name__ == "__main__":
    sys.exit(main())

"""Train EPyMARL's IPPO and MAPPO on its tasks, evaluate them, and write the results.

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

from benchmarks.reproduce.tasks import CRITICS, TASKS

ROOT = Path(__file__).parents[2]
EPISODES = 1000  # of each evaluation
PLAY = {"sampled": ["--explore"], "greedy": []}
RESULT = "result.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, metavar="TASK", default=[*TASKS], help=", ".join(TASKS))
    parser.add_argument("--algorithms", nargs="+", choices=CRITICS, default=[*CRITICS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("runs/reproduce"), help="default %(default)s")
    args = parser.parse_args()
    runs = [*product(args.seeds, args.tasks, args.algorithms)]
    with ThreadPoolExecutor(args.jobs) as pool:
        codes = [*pool.map(lambda run: run_of(args.folder, *run), runs)]
    return max(codes)


def run_of(folder: Path, seed: int, task: str, algorithm: str) -> int:
    """Train and evaluate, unless it was done before; returns the exit code."""
    path = folder / f"{task}-{algorithm}-seed{seed}"
    if not (path / RESULT).exists():
        if code := call(*training(path, seed, task, algorithm)):
            return code
        result = {"task": task, "algorithm": algorithm, "seed": seed, "curve": curve_of(path / "curve.csv")}
        result["cpu_seconds"] = result["curve"]["cpu_seconds"].pop()
        del result["curve"]["cpu_seconds"]
        for play, option in PLAY.items():
            figures = path / f"{play}.csv"
            command = ["fastmarl", "evaluate", path, "--episodes", EPISODES, "--seed", 1000, "--csv", figures, *option]
            if code := call("-m", *command):
                return code
            with figures.open() as file:
                row = next(csv.DictReader(file))
            result[play] = [float(row["mean return"]), float(row["standard error"])]
        (path / RESULT).write_text(json.dumps(result))
    return 0


def training(path: Path, seed: int, task: str, algorithm: str) -> list:
    """Return the command that starts or resumes a run."""
    command = ["-m", "fastmarl", "train"]
    if (path / "run.json").exists():
        return [*command, "--resume", path]
    chosen = TASKS[task]
    options = {
        "folder": path,
        "seed": seed,
        "env": chosen.env,
        "env-config": json.dumps(chosen.env_config),
        "critic": CRITICS[algorithm],
        "fragment": chosen.fragment,
        "steps": chosen.steps,
        "episodes": 1,
        **chosen.options,
    }
    return [*command, "epymarl", *(part for name, value in options.items() for part in (f"--{name}", value))]


def call(*arguments) -> int:
    """Run a Python module with one thread; returns its exit code. Its messages go where ours go."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, env=environment).returncode


def curve_of(path: Path) -> dict[str, list[float]]:
    """Return env steps, CPU seconds and returns of a learning curve."""
    with path.open() as file:
        rows = [*csv.DictReader(file)]
    return {name: [float(row[name]) for row in rows] for name in ("step", "cpu_seconds", "episode_return_mean")}


if __name__ == "__main__":
    sys.exit(main())

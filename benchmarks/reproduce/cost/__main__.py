"""Measure the CPU time of an env step with IPPO on LBF by EPyMARL, BenchMARL, TorchRL and fastmarl.

    python -m benchmarks.reproduce.cost --envs-folder build/peers --epymarl FOLDER

FOLDER is a clone of EPyMARL at commit cbc38c0; the other libraries come from PyPI. All have the same task, network and
hyperparameters, one thread in each process, and 10 envs of 50 steps in an update unless a row says otherwise. Where a
library has no n-step returns with a target critic, it uses GAE. Only the updates after the third are measured, of a
policy that still acts at random. CPU time includes that of worker processes; start-up is excluded. In each round
every library runs once.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[3]
CHILDREN = Path(__file__).parent / "children"
NAME = "Foraging-8x8-2p-2f-coop-v3"
COMPILED = ["--env", "fastmarl.lbforaging", "--env-config", json.dumps({"name": NAME})]
ROWS = {  # name -> library and arguments of its child
    "EPyMARL": ("epymarl", ["use_rnn=False"]),
    "EPyMARL, its default network (GRU)": ("epymarl", ["use_rnn=True"]),
    "BenchMARL": ("benchmarl", []),
    "TorchRL": ("torchrl", []),
    "fastmarl, Python env": ("fastmarl", ["--env", f"lbforaging:{NAME}"]),
    "fastmarl, compiled env": ("fastmarl", COMPILED),
    "fastmarl, compiled env, GRU": ("fastmarl", [*COMPILED, "--gru"]),
    "fastmarl, compiled env, 128 envs (12.8 times the batch)": ("fastmarl", [*COMPILED, "--num-envs", "128"]),
    "the Python env alone": ("environment", [f"lbforaging:{NAME}"]),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce.cost", description=__doc__.partition("\n")[0])
    parser.add_argument("--epymarl", required=True, type=Path, help="clone of EPyMARL at commit cbc38c0")
    parser.add_argument("--envs-folder", type=Path, default=Path("build/peers"), help="holds virtual environments")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each library (default %(default)s)")
    parser.add_argument("--updates", type=int, default=20, help="measured updates of a run (default %(default)s)")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/reproduce_cost.json"))
    args = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {name: [] for name in ROWS}
    for number in range(args.rounds):
        for name, (library, options) in ROWS.items():
            results[name].append(measured(library, options, args))
            print(f"round {number + 1}, {name}: {results[name][-1]}", file=sys.stderr)
    args.json.write_text(json.dumps({"updates": args.updates, "rows": results}, indent=1) + "\n")
    print(table(results))
    return 0


def measured(library: str, options: list[str], args: argparse.Namespace) -> dict[str, float]:
    """Run a child in its virtual environment; returns microseconds of sampling and of learning per env step."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    python = str((args.envs_folder / library / "bin" / "python").absolute())
    if library in ("fastmarl", "environment"):
        python, environ["PYTHONPATH"] = sys.executable, str(ROOT)
    elif library == "epymarl":
        options = [str(args.epymarl.absolute()), *options]
    command = [python, str(CHILDREN / f"with_{library}.py"), str(args.updates), *options]
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{child.stderr[-2000:]}")
    return json.loads(child.stdout.splitlines()[-1])


def table(results: dict[str, list[dict[str, float]]]) -> str:
    """Return medians over rounds as a Markdown table, and the totals' minima and maxima."""
    columns = ["µs of CPU time per env step", "sampling", "learning", "total (min to max)", "times EPyMARL's speed"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    totals = {name: [sum(run.values()) for run in runs] for name, runs in results.items()}
    reference = median(totals["EPyMARL"])
    for name, runs in results.items():
        sampling, learning = (median(run[part] for run in runs) for part in ("sampling", "learning"))
        total = median(totals[name])
        spread = f"{total:.1f} ({min(totals[name]):.1f} to {max(totals[name]):.1f})"
        lines.append(f"| {name} | {sampling:.1f} | {learning:.1f} | {spread} | {reference / total:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

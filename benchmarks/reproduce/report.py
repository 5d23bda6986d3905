"""Write finished runs to benchmarks/results/reproduce.json, and table and plots to docs/results.md.

    python -m benchmarks.reproduce.report

Runs in runs/reproduce are added to those that the file has, or replace them.
"""

import json
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.reproduce.tasks import ALGORITHMS, TASKS
from fastmarl.report.plots import OTHERS, OURS, picture

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks/results/reproduce.json", ROOT / "docs/results.md"
MARKS = "<!-- results -->", "<!-- end of results -->"
COLORS = dict(zip(ALGORITHMS, (OURS, OTHERS, "#ef6c00", "black", "#5e35b1"), strict=True))
PER_HOUR = 3600
PAPER = "[table 3](https://arxiv.org/abs/2006.07869)"  # for values that have not been looked up


def place(result: dict) -> tuple:
    return tuple(TASKS).index(result["task"]), tuple(ALGORITHMS).index(result["algorithm"]), result["seed"]


def groups(results: Iterable[dict]) -> Iterable[tuple[tuple[str, str], list[dict]]]:
    """Yield the runs of each task and algorithm, in the order of the tasks."""
    for key, runs in groupby(sorted(results, key=place), lambda result: (result["task"], result["algorithm"])):
        yield key, [*runs]


def table(results: Iterable[dict]) -> str:
    """Return a Markdown table: means over seeds, with the lowest and highest seed in brackets."""
    lines = [
        "| task | algorithm | seeds | best in training | published | last policy, sampled | greedy | CPU hours a run |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (task, algorithm), runs in groups(results):
        published = TASKS[task].published.get(algorithm)
        hours = fmean(run["cpu_seconds"] for run in runs) / PER_HOUR
        cells = [
            *(f"`{task}`", algorithm.upper(), str(len(runs)), f"{best(runs):.2f}"),
            PAPER if published is None else "{:.2f} ± {:.2f}".format(*published),
            *(spread([in_their_unit(run[play][0], task) for run in runs]) for play in ("sampled", "greedy")),
            f"{hours:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def in_their_unit(returns: Any, task: str) -> Any:
    """Convert our returns to the unit of the published ones."""
    factor, summand = TASKS[task].unit
    return factor * returns + summand


def best(runs: list[dict]) -> float:
    """Return the highest of the evaluations in training, which are means over the seeds.

    Without evaluations, as in earlier runs, the learning curves take their place.
    """
    name = "evaluations" if all("evaluations" in run for run in runs) else "curve"
    curves = np.array([run[name] for run in runs])[..., 1]
    return float(in_their_unit(curves.mean(0).max(), runs[0]["task"]))


def spread(means: list[float]) -> str:
    return f"{fmean(means):.2f}" + (f" ({min(means):.2f} to {max(means):.2f})" if len(means) > 1 else "")


def draw(results: Iterable[dict]) -> None:
    """Draw the learning curves of each family of tasks: means over seeds, bands from the lowest to the highest."""
    by_task: dict[str, dict[str, list[dict]]] = {}
    for (task, algorithm), runs in groups(results):
        by_task.setdefault(task, {})[algorithm] = runs
    for family, tasks in groupby(by_task, lambda task: task.partition("-")[0]):
        names = [*tasks]
        with picture(ROOT / f"docs/images/results_{family}.png", 9.6, 2.6) as figure:
            for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
                for algorithm, runs in by_task[name].items():
                    steps, returns = np.array([run["curve"] for run in runs]).transpose(2, 0, 1)
                    returns = in_their_unit(returns, name)
                    axes.plot(steps[0] / 1e6, returns.mean(0), color=COLORS[algorithm], label=algorithm.upper())
                    axes.fill_between(
                        steps[0] / 1e6, returns.min(0), returns.max(0), color=COLORS[algorithm], alpha=0.25, linewidth=0
                    )
                    if (published := TASKS[name].published.get(algorithm)) is not None:
                        low, high = published[0] - published[1], published[0] + published[1]
                        axes.axhspan(low, high, color=COLORS[algorithm], alpha=0.12, linewidth=0)
                axes.set_title(name.partition("-")[2], fontsize=9)
                axes.set_xlabel("million env steps", fontsize=9)
            figure.axes[0].set_ylabel("mean return", fontsize=9)
            figure.axes[0].legend(framealpha=1, edgecolor="none")


def main() -> None:
    found = {place(run): run for run in (json.loads(RESULTS.read_text()) if RESULTS.exists() else [])}
    for path in ROOT.glob("runs/reproduce/*/result.json"):
        run = json.loads(path.read_text())
        found[place(run)] = run
    results = [found[key] for key in sorted(found)]
    start, end = MARKS
    rows = table(results)
    page, count = re.subn(f"{start}.*{end}", lambda _: f"{start}\n\n{rows}\n\n{end}", PAGE.read_text(), flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{PAGE} must have {start} and {end} once")
    draw(results)
    RESULTS.write_text("[\n" + ",\n".join(map(json.dumps, results)) + "\n]\n")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()

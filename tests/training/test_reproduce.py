"""The reproduction of published benchmarks: runs that are killed, and what is written of them."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.reproduce import report
from benchmarks.reproduce.__main__ import hours_of, result_of
from benchmarks.reproduce.cost import __main__ as cost
from benchmarks.reproduce.tasks import TASKS
from fastmarl.cli.arguments import env_of
from fastmarl.cli.runs import load_run
from fastmarl.play.arena.evaluation import evaluate
from fastmarl.training.run_folder import steps_of

ROOT = Path(__file__).parents[2]
TASK = "lbf-8x8-2p-2f-coop"
SHORT = f"""
from dataclasses import replace
from benchmarks.reproduce.__main__ import main
from benchmarks.reproduce.tasks import TASKS
TASKS["{TASK}"] = replace(TASKS["{TASK}"], steps=100_000, options={{"checkpoint-every": 0.2}})
raise SystemExit(main())
"""


def started(folder):
    command = [sys.executable, "-c", SHORT, "--tasks", TASK, "--algorithms", "mappo", "--seeds", "3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def finished(folder):
    """Return the printed table and the result of a run that goes on to its end."""
    process = started(folder)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    result = json.loads((folder / f"runs/reproduce/{TASK}-mappo-seed3/result.json").read_text())
    assert result.pop("cpu_seconds") > 0
    return printed, result


def newest_checkpoint(folder):
    """Return the number of env steps of a run's newest checkpoint; -1 if there is none."""
    return max((steps_of(path) or 0 for path in folder.glob("runs/reproduce/*/checkpoint-*")), default=-1)


@pytest.mark.exhaustive
def test_runs_that_are_killed_are_resumed_with_the_same_curve(tmp_path):
    printed, want = finished(tmp_path / "undisturbed")
    assert f"| `{TASK}` | MAPPO | 1 |" in printed
    assert want["curve"][-1][0] == 100_000
    for least in (0, 1, 40_000):
        process = started(tmp_path / "killed")
        while process.poll() is None and newest_checkpoint(tmp_path / "killed") < least:
            time.sleep(0.02)
        time.sleep(random.uniform(0, 0.5))
        assert process.poll() is None, "it has to be killed while it runs"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    assert finished(tmp_path / "killed")[1] == want
    (curve,) = tmp_path.glob("killed/runs/reproduce/*/curve.csv")
    curve.unlink()
    assert finished(tmp_path / "killed")[1] == want, "a finished run is not repeated"


def test_an_estimate_that_fails_names_the_run(monkeypatch, capfd):
    monkeypatch.setitem(TASKS, TASK, replace(TASKS[TASK], env="unknown.env"))
    with pytest.raises(SystemExit, match=f"ippo on {TASK} failed"):
        hours_of(TASK, "ippo")
    assert "unknown.env" in capfd.readouterr().err


def test_runs_with_other_options_are_not_taken_for_those_of_the_task(tmp_path, monkeypatch):
    task, run = "rware-tiny-2ag", tmp_path / "rware-tiny-2ag-ippo-seed3"
    monkeypatch.setattr("benchmarks.reproduce.__main__.FOLDER", tmp_path)
    shutil.copytree(ROOT / f"zoo/{task}-ippo", run)
    (run / "result.json").write_text("{}")
    assert result_of(3, task, "ippo") == {}
    monkeypatch.setitem(TASKS, task, replace(TASKS[task], options={"lr": 0.5, "n-steps": 10}))
    with pytest.raises(SystemExit, match="was trained with other values of lr; move it away"):
        result_of(3, task, "ippo")


def test_tables_and_plots_have_all_runs(tmp_path, monkeypatch):
    results = [
        {"task": task, "algorithm": algorithm, "seed": seed, "cpu_seconds": 1800.0,
         "curve": [[0, 0.0], [10, 0.2 + 0.4 * seed], [20, 0.8 - 0.1 * seed]],
         "sampled": [0.25 * seed, 0.1], "greedy": [0.5, 0.1]}
        for task in TASKS for algorithm in TASKS[task].algorithms for seed in (2, 0)
    ]  # fmt: skip
    lines = report.table(results).splitlines()
    assert len(lines) == 2 + sum(len(task.algorithms) for task in TASKS.values())
    best = 0.7  # of the means over both seeds, 0.6 and 0.7
    figures = f"{best:.2f} | {report.PAPER} | 0.25 (0.00 to 0.50) | 0.50 (0.50 to 0.50) | 0.50"
    assert lines[2] == f"| `{TASK}` | IPPO | 2 | {figures} |"
    (tmp_path / "docs/images").mkdir(parents=True)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    report.draw(results)
    assert len([*(tmp_path / "docs/images").iterdir()]) == len({task.partition("-")[0] for task in TASKS})


def recorded():
    return json.loads(report.RESULTS.read_text())


def test_the_page_has_the_tables_of_the_recorded_figures():
    page = report.PAGE.read_text()
    assert report.table(recorded()) in page
    costs = json.loads((ROOT / "benchmarks/results/reproduce_cost.json").read_text())
    assert cost.table(costs["rows"]) in page


@pytest.mark.parametrize("entry", sorted((ROOT / "zoo").iterdir()), ids=lambda path: path.name)
def test_policies_of_the_zoo_reach_the_returns_in_the_table(entry):
    returns = {f"{run['task']}-{run['algorithm']}": run["sampled"][0] for run in recorded() if run["seed"] == 0}
    policy, options = load_run(entry, trust=False)
    env = env_of(options.env, options.max_steps)
    found = evaluate(policy, env, episodes=50, explore=True, env_config=options.env_config, seed=0)
    assert abs(found.mean - returns[entry.name]) < 6 * found.standard_error + 0.01


def test_the_zoo_is_small():
    assert sum(path.stat().st_size for path in ROOT.glob("zoo/**/*.*")) < 2_000_000

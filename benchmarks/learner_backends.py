"""Compare the returns of an example with compiled updates and with autograd, over seeds.

python benchmarks/learner_backends.py           (10 seeds of ippo, half an hour of a core)
python benchmarks/learner_backends.py --seeds 0 (plots and compares the curves in benchmarks/results/curves)
python benchmarks/learner_backends.py --example vdn

Permutation tests compare final returns and means over all updates. The plot is docs/images/EXAMPLE_backends.png.
"""

import argparse
import sys
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plot_curves import COLORS, CURVES, RETURN, curves_of
from scipy.stats import permutation_test

from fastmarl.cli.train_options import parse_options
from fastmarl.learning import PPOLearner, QLearner, ValueLearner
from fastmarl.report.plots import picture
from fastmarl.training import Algorithm
from fastmarl.training.loop import train
from fastmarl.training.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

LABELS = {True: "compiled", False: "autograd"}
LEARNERS = (PPOLearner, QLearner, ValueLearner)
EXAMPLES = {  # env steps
    **{"ippo": 1_200_000, "mappo": 1_200_000, "recurrent_ippo": 200_000},
    **{"iql": 240_000, "vdn": 240_000, "qmix": 240_000},
}


def folder_of(example: str, compiled: bool) -> Path:
    return CURVES / f"{example}_{LABELS[compiled]}"


def algorithm_of(example: str, compiled: bool) -> Algorithm:
    """Return an example's algorithm, with or without compiled updates."""
    module: Any = import_module(example)
    for learner in LEARNERS:
        if hasattr(module, learner.__name__):
            setattr(module, learner.__name__, partial(learner, compiled=compiled))
    algorithm: Algorithm = module.ALGORITHM
    return algorithm


def make_learner(example: str, compiled: bool) -> tuple[Any, Any]:
    """Return an example's runner and learner with default options."""
    algorithm = algorithm_of(example, compiled)
    options = parse_options(algorithm, [])
    runner = algorithm.make_runner(algorithm.make_config(options))
    return runner, algorithm.make_learner(runner, options, 1000)


def run(example: str, compiled: bool, seed: int) -> None:
    """Train with one seed and save the curve."""
    algorithm = algorithm_of(example, compiled)
    options = parse_options(algorithm, ["--steps", str(EXAMPLES[example]), "--seed", str(seed)])
    with tempfile.TemporaryDirectory() as folder:
        train(algorithm, options, RunFolder(Path(folder)))
        curves = folder_of(example, compiled)
        curves.mkdir(parents=True, exist_ok=True)
        (curves / f"seed_{seed}.csv").write_text((Path(folder) / "curve.csv").read_text())


def compare(example: str) -> None:
    """Print both tests, and plot medians and quartiles."""
    found = {compiled: curves_of(folder_of(example, compiled), RETURN) for compiled in LABELS}
    for name, of in (("final return", lambda runs: runs[:, -1]), ("mean over updates", lambda runs: runs.mean(1))):
        ours, theirs = (of(found[compiled][1]) for compiled in (True, False))
        test = permutation_test((ours, theirs), lambda a, b: a.mean() - b.mean(), n_resamples=20_000, rng=0)
        print(f"{name}: compiled {ours.mean():.2f} (sd {ours.std(ddof=1):.2f}), autograd {theirs.mean():.2f} "
              f"(sd {theirs.std(ddof=1):.2f}), {len(ours)} seeds, p = {test.pvalue:.2f}")  # fmt: skip
    with picture(ROOT / "docs" / "images" / f"{example}_backends.png", 5.6, 2.8) as figure:
        axes = figure.subplots()
        for (compiled, (steps, runs)), color in zip(found.items(), COLORS, strict=False):
            low, median, high = np.quantile(runs, (0.25, 0.5, 0.75), axis=0)
            axes.plot(steps, median, color=color, linewidth=1.5, label=f"{LABELS[compiled]}, {len(runs)} seeds")
            axes.fill_between(steps, low, high, color=color, alpha=0.25, linewidth=0)
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("env steps")
        axes.set_ylabel("mean return: median, quartiles", fontsize=9)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--example", choices=EXAMPLES, default="ippo")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(args.seeds):
        for compiled in LABELS:
            run(args.example, compiled, seed)
    compare(args.example)


if __name__ == "__main__":
    main()

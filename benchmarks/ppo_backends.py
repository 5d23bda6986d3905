"""Compare the returns of examples/ippo.py with compiled updates and with autograd, over seeds.

python benchmarks/ppo_backends.py           (10 seeds of each, half an hour of a core)
python benchmarks/ppo_backends.py --seeds 0 (plots and compares the curves in benchmarks/results/curves)
python benchmarks/ppo_backends.py --example recurrent_ippo

Permutation tests compare final returns and means over all updates. The plot is docs/images/ppo_backends.png, or
recurrent_ppo_backends.png.
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
from fastmarl.learning import PPOLearner
from fastmarl.report.plots import picture
from fastmarl.training.loop import train
from fastmarl.training.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

LABELS = {True: "compiled", False: "autograd"}
EXAMPLES = {"ippo": (1_200_000, "ppo_backends.png"), "recurrent_ippo": (200_000, "recurrent_ppo_backends.png")}


def folder_of(example: str, compiled: bool) -> Path:
    return CURVES / f"{example}_{LABELS[compiled]}"


def run(example: str, compiled: bool, seed: int) -> None:
    """Train with one seed and save the curve."""
    module: Any = import_module(example)
    module.PPOLearner = partial(PPOLearner, compiled=compiled)
    options = parse_options(module.ALGORITHM, ["--steps", str(EXAMPLES[example][0]), "--seed", str(seed)])
    with tempfile.TemporaryDirectory() as folder:
        train(module.ALGORITHM, options, RunFolder(Path(folder)))
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
    with picture(ROOT / "docs" / "images" / EXAMPLES[example][1], 5.6, 2.8) as figure:
        axes = figure.subplots()
        for (compiled, (steps, runs)), color in zip(found.items(), COLORS, strict=True):
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

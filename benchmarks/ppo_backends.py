"""Compare the returns of examples/ippo.py with compiled updates and with autograd, over seeds.

python benchmarks/ppo_backends.py           (10 seeds of each, half an hour of a core)
python benchmarks/ppo_backends.py --seeds 0 (plots and compares the curves in benchmarks/results/curves)

Permutation tests compare final returns and means over all updates. The plot is docs/images/ppo_backends.png.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

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
import ippo  # noqa: E402

FOLDERS = {True: CURVES / "ippo_compiled", False: CURVES / "ippo_autograd"}
LABELS = {True: "compiled", False: "autograd"}
STEPS = 1_200_000


def run(compiled: bool, seed: int) -> None:
    """Train with one seed and save the curve."""
    ippo.PPOLearner = partial(PPOLearner, compiled=compiled)  # type: ignore[attr-defined]
    options = parse_options(ippo.ALGORITHM, ["--steps", str(STEPS), "--seed", str(seed)])
    with tempfile.TemporaryDirectory() as folder:
        train(ippo.ALGORITHM, options, RunFolder(Path(folder)))
        FOLDERS[compiled].mkdir(parents=True, exist_ok=True)
        (FOLDERS[compiled] / f"seed_{seed}.csv").write_text((Path(folder) / "curve.csv").read_text())


def compare() -> None:
    """Print both tests, and plot medians and quartiles."""
    found = {compiled: curves_of(folder, RETURN) for compiled, folder in FOLDERS.items()}
    for name, of in (("final return", lambda runs: runs[:, -1]), ("mean over updates", lambda runs: runs.mean(1))):
        ours, theirs = (of(found[compiled][1]) for compiled in (True, False))
        test = permutation_test((ours, theirs), lambda a, b: a.mean() - b.mean(), n_resamples=20_000, rng=0)
        print(f"{name}: compiled {ours.mean():.2f} (sd {ours.std(ddof=1):.2f}), autograd {theirs.mean():.2f} "
              f"(sd {theirs.std(ddof=1):.2f}), {len(ours)} seeds, p = {test.pvalue:.2f}")  # fmt: skip
    with picture(ROOT / "docs" / "images" / "ppo_backends.png", 5.6, 2.8) as figure:
        axes = figure.subplots()
        for (compiled, (steps, runs)), color in zip(found.items(), COLORS, strict=True):
            low, median, high = np.quantile(runs, (0.25, 0.5, 0.75), axis=0)
            axes.plot(steps, median, color=color, linewidth=1.5, label=f"{LABELS[compiled]}, {len(runs)} seeds")
            axes.fill_between(steps, low, high, color=color, alpha=0.25, linewidth=0)
        axes.set_xlabel("env steps")
        axes.set_ylabel("mean return: median, quartiles", fontsize=9)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(args.seeds):
        for compiled in FOLDERS:
            run(compiled, seed)
    compare()


if __name__ == "__main__":
    main()

"""Draws the pictures of docs/gallery.md from learning curves in benchmarks/results/curves: of each example a folder,
in it the curve.csv of each seed as seed_0.csv, seed_1.csv, ...

python benchmarks/plot_curves.py
"""

import csv
import pathlib
from dataclasses import dataclass

import numpy as np

from fastmarl.bench.plots import LIMIT, OTHERS, OURS, picture

ROOT = pathlib.Path(__file__).parents[1]
CURVES = ROOT / "benchmarks" / "results" / "curves"
COLORS = (OURS, OTHERS)


@dataclass(frozen=True)
class Picture:
    """Of one example.

    Attributes:
        curves: label -> folder.
        random_play: what random play returns, a dashed line.
        column, meaning: what is drawn over env steps, and the axis' label.
    """

    curves: dict[str, str]
    random_play: float
    column: str = "episode_return_mean"
    meaning: str = "mean episode return"


SPREAD, TWO_POLES = -79.4, 44.3
PICTURES = {
    "ippo": Picture({"IPPO": "ippo"}, SPREAD),
    "mappo": Picture({"MAPPO": "mappo"}, SPREAD),
    "recurrent_ippo": Picture({"LSTM": "recurrent_ippo", "without memory": "recurrent_ippo_memoryless"}, TWO_POLES),
    "vdn": Picture({"VDN": "vdn"}, SPREAD),
}


def curves_of(folder: pathlib.Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(env steps [n], the column [seeds, n]); later seeds are read at the steps of the first."""
    curves = []
    for path in sorted(folder.glob("seed_*.csv")):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        env_steps = "env_steps" if "env_steps" in rows[0] else "step"  # as a MetricsWriter has it
        curves.append([np.array([float(row[name]) for row in rows]) for name in (env_steps, column)])
    steps = curves[0][0]
    return steps, np.array([np.interp(steps, *curve) for curve in curves])


def draw(name: str, drawn: Picture) -> None:
    with picture(ROOT / "docs" / "images" / f"gallery_{name}.png", 5.6, 2.8) as figure:
        axes = figure.subplots()
        for (label, folder), color in zip(drawn.curves.items(), COLORS, strict=False):
            steps, returns = curves_of(CURVES / folder, drawn.column)
            axes.plot(steps, returns.mean(0), color=color, linewidth=1.5, label=label)
            axes.fill_between(steps, returns.min(0), returns.max(0), color=color, alpha=0.25, linewidth=0)
        axes.axhline(drawn.random_play, color=LIMIT, linewidth=1, linestyle="--", label="random play")
        axes.set_xlabel("env steps")
        axes.set_ylabel(drawn.meaning, fontsize=9)
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(frameon=False)


def main() -> None:
    for name, drawn in PICTURES.items():
        draw(name, drawn)


if __name__ == "__main__":
    main()

"""Draw the plots of docs/gallery.md from the learning curves in benchmarks/results/curves.

Each example has a folder with the curve.csv of each seed, as seed_0.csv, seed_1.csv, ...

python benchmarks/plot_curves.py
"""

import csv
import pathlib
from dataclasses import dataclass

import numpy as np

from fastmarl.report.plots import LIMIT, OTHERS, OURS, picture

ROOT = pathlib.Path(__file__).parents[1]
CURVES = ROOT / "benchmarks" / "results" / "curves"
COLORS = (OURS, OTHERS, "#5e35b1")


@dataclass(frozen=True)
class Picture:
    """The plot of one example.

    Attributes:
        curves: label -> (folder, the column that is drawn over env steps).
        random_play: The value under random play, drawn as a dashed line; None if there is none.
        meaning: The label of the axis.
    """

    curves: dict[str, tuple[str, str]]
    random_play: float | None
    meaning: str = "mean episode return"


SPREAD, TWO_POLES, RETURN = -79.4, 44.3, "episode_return_mean"
PICTURES = {
    "ippo": Picture({"IPPO": ("ippo", RETURN)}, SPREAD),
    "mappo": Picture({"MAPPO": ("mappo", RETURN)}, SPREAD),
    "recurrent_ippo": Picture(
        {"LSTM": ("recurrent_ippo", RETURN), "without memory": ("recurrent_ippo_memoryless", RETURN)}, TWO_POLES
    ),
    "vdn": Picture({"VDN": ("vdn", RETURN), "IQL": ("iql", RETURN), "QMIX": ("qmix", RETURN)}, SPREAD),
    "async_vtrace": Picture({"PPO with V-trace": ("async_vtrace", RETURN)}, SPREAD),
    "two_policies": Picture({"hunters": ("two_policies", "hunters"), "prey": ("two_policies", "prey")}, None),
    "self_play": Picture(
        {"trained policy": ("self_play", "rating/main"), "looks one move ahead": ("self_play", "rating/one_ply")},
        0.0,
        "Elo rating",
    ),
}


def curves_of(folder: pathlib.Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (env steps [n], the column [seeds, n]); later seeds are interpolated at the steps of the first."""
    curves = []
    for path in sorted(folder.glob("seed_*.csv")):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        env_steps = "env_steps" if "env_steps" in rows[0] else "step"  # as a MetricsWriter writes it
        curves.append([np.array([float(row[name]) for row in rows]) for name in (env_steps, column)])
    steps = curves[0][0]
    if steps[-1] - steps[-2] < (steps[-2] - steps[-3]) / 2:  # the row of a run's end follows another one closely
        steps = steps[:-1]
    return steps, np.array([np.interp(steps, *curve) for curve in curves])


def draw(name: str, drawn: Picture) -> None:
    with picture(ROOT / "docs" / "images" / f"gallery_{name}.png", 5.6, 2.8) as figure:
        axes = figure.subplots()
        for (label, (folder, column)), color in zip(drawn.curves.items(), COLORS, strict=False):
            steps, values = curves_of(CURVES / folder, column)
            axes.plot(steps, values.mean(0), color=color, linewidth=1.5, label=label)
            axes.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.25, linewidth=0)
        if drawn.random_play is not None:
            axes.axhline(drawn.random_play, color=LIMIT, linewidth=1, linestyle="--", label="random play")
        axes.set_xlabel("env steps")
        axes.set_ylabel(drawn.meaning, fontsize=9)
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(framealpha=1, edgecolor="none")  # lines pass behind it


def main() -> None:
    for name, drawn in PICTURES.items():
        draw(name, drawn)


if __name__ == "__main__":
    main()

"""Draw the learning curve of a run: python curve.py runs/first"""

import csv
import sys
from pathlib import Path

from matplotlib.figure import Figure


def main(folder: Path) -> None:
    with (folder / "metrics.csv").open() as file:
        rows = [(int(row["step"]), float(row["episode_return_mean"])) for row in csv.DictReader(file)]
    figure = Figure(figsize=(7, 4), layout="tight")
    axes = figure.subplots()
    axes.plot(*zip(*rows, strict=True), color="teal")
    axes.set(xlabel="env steps", ylabel="mean return of the last 100 episodes", title="Hares on a meadow")
    axes.grid(alpha=0.3)
    figure.savefig(folder / "curve.png", dpi=100)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))

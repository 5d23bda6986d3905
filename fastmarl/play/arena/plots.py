"""The picture of a tournament."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastmarl.report.plots import OURS, picture

MOST_LABELLED = 20  # players whose payoffs are written into the cells


def draw(path: Path, names: Sequence[str], payoffs: np.ndarray, ratings: np.ndarray, errors: np.ndarray) -> None:
    """Payoffs [P, P] as a heat map, and beside it ratings [P] with two standard errors on both sides."""
    size = max(3.0, 0.35 * len(names) + 1.5)
    with picture(path, width=2 * size + 1, height=size) as figure:
        left, right = figure.subplots(1, 2)
        _draw_payoffs(figure, left, names, payoffs)
        places = range(len(names))
        right.errorbar(ratings, places, xerr=2 * errors, fmt="o", color=OURS, capsize=3)
        right.set_yticks(places, names, parse_math=False)
        right.invert_yaxis()
        right.axvline(0, color="#9e9e9e", linewidth=1, zorder=0)
        right.set_xlabel("rating (Elo), ± 2 standard errors")


def _draw_payoffs(figure: Any, axes: Any, names: Sequence[str], payoffs: np.ndarray) -> None:
    most = np.nanmax(np.abs(payoffs)) or 1.0
    image = axes.imshow(payoffs, cmap="RdBu", vmin=-most, vmax=most)
    places = range(len(names))
    axes.set_xticks(places, names, rotation=90, parse_math=False)
    axes.set_yticks(places, names, parse_math=False)
    axes.set_title("mean payoff of row against column", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8)
    for i in places if len(names) <= MOST_LABELLED else ():
        for j in places:
            if np.isfinite(payoffs[i, j]):
                is_dark = abs(payoffs[i, j]) > 0.6 * most
                color = "white" if is_dark else "black"
                axes.text(j, i, f"{payoffs[i, j]:.2g}", ha="center", va="center", fontsize=7, color=color)

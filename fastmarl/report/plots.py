"""Plotting functions shared by all commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OURS, OTHERS, LIMIT = "#00897b", "#9e9e9e", "#c62828"  # colours
LABEL_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # behind a label that a line may cross


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Any]:
    """Yield a matplotlib Figure of this width and height in inches to draw on, and save it on exit."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def bars(axes: Any, names: Sequence[str], values: Sequence[float], labels: Sequence[str], colors: Any = OURS) -> None:
    """Draw horizontal bars from top to bottom with labels at their ends; lines may pass behind the labels."""
    drawn = axes.barh(range(len(names)), values, color=colors)
    for label in axes.bar_label(drawn, labels, padding=4, fontsize=9):
        label.set_bbox(LABEL_BOX)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.22)


def limit_line(axes: Any, x: float) -> None:
    """Draw a dashed vertical line behind the labels of the bars."""
    axes.axvline(x, color=LIMIT, linewidth=1, linestyle="--", zorder=0)


def ratio_bars(axes: Any, names: Sequence[str], ratios: Sequence[float], label: str, meaning: str) -> None:
    """Draw bars with a line at 1; `label` is a format such as "{:.1f}x"."""
    bars(axes, names, ratios, [label.format(ratio) for ratio in ratios])
    limit_line(axes, 1)
    axes.set_xlabel(meaning)


def log_scale(axis: Any, form: Any) -> None:
    """Make the axis logarithmic with ticks at 1, 2 and 5 times each power of ten, formatted by `form`."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(form)
    axis.set_minor_formatter(NullFormatter())

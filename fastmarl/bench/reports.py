"""Tables and plots of the results of `fastmarl bench`."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from fastmarl.report.plots import LABEL_BOX, LIMIT, OURS, log_scale, picture, ratio_bars
from fastmarl.report.records import Figures, Row
from fastmarl.report.tables import Table

RELATIVE_SPEED_COLUMNS = {
    "environment": ("environment", ""),
    "agents": ("agents", ".1f"),
    "envs": ("envs", ""),
    "env_us": ("env", ".2f"),
    "network_us": ("network", ".2f"),
    "limit_us": ("bare\nloop", ".2f"),
    "runner_us": ("runner", ".2f"),
    "relative_speed": ("relative\nspeed", ".3f"),
    "own_relative_speed": ("own", ".3f"),
    "agent_steps_per_second": ("agent\nsteps/s", ",.0f"),
}
TITLES = {
    "agents": "agents in each of 16 envs",
    "envs": "envs of 4 agents",
    "network": "units in each of two layers, 4 agents x 256 envs",
    "workers": "worker processes (0: none), simple_spread, 16 envs",
}
SCALING_COLUMNS = {  # besides the size
    "agent_steps_per_second": ("agent steps/s", ",.0f"),
    "runner_us": ("µs per agent step", ".3f"),
    "limit_us": ("bare loop", ".3f"),
    "relative_speed": ("relative\nspeed", ".2f"),
    "own_relative_speed": ("own", ".2f"),
}


def relative_speed_tables(figures: Figures) -> list[Table]:
    """Return the table of the section "figures"; its rows contain an environment name and fields of `RelativeSpeed`."""
    rows = figures["figures"]
    title = (
        f"µs per agent step, medians of {len(rows[0]['rounds'])} rounds, one torch thread; own: the bare loop draws "
        "actions as we do"
    )
    return [Table.of(title, RELATIVE_SPEED_COLUMNS, rows)]


def draw_relative_speed(figures: Figures, path: Path) -> None:
    """Plot the relative speeds as bars."""
    rows = figures["figures"]
    names = [f"{row['environment']}, {row['agents']:.3g} x {row['envs']}" for row in rows]
    ratios = [row["relative_speed"] for row in rows]
    with picture(path, 8, 1.2 + 0.35 * len(rows)) as figure:
        ratio_bars(figure.subplots(), names, ratios, "{:.2f}", "relative speed (1: the bare loop's)")


def order_in_series(row: Row) -> tuple:
    """Return the sort key of a row.

    Raises:
        ValueError: If the series of the row is unknown.
    """
    return [*TITLES].index(row["series"]), row["size"]


def scaling_tables(figures: Figures) -> list[Table]:
    """Return a table for each series in the section "series", with times in microseconds."""
    return [Table.of("", {"size": (TITLES[name], ",d"), **SCALING_COLUMNS}, rows) for name, rows in _by_name(figures)]


def draw_scaling(figures: Figures, path: Path) -> None:
    """Plot agent steps per second of the runner and the bare loop, with relative speeds, one plot per series."""
    series = _by_name(figures)
    columns = min(2, len(series))
    lines = -(-len(series) // columns)
    with picture(path, 5 * columns, 3.4 * lines) as figure:
        for index, (name, of_series) in enumerate(series, start=1):
            _draw_series(figure.add_subplot(lines, columns, index), name, of_series)


def _by_name(figures: Figures) -> list[tuple[str, list[Row]]]:
    return [(name, [*rows]) for name, rows in groupby(figures["series"], itemgetter("series"))]


def _draw_series(axes: Any, name: str, rows: list[Row]) -> None:
    from matplotlib.ticker import EngFormatter, NullLocator

    sizes = [row["size"] for row in rows]
    speeds = [row["agent_steps_per_second"] for row in rows]
    axes.plot(sizes, [1e6 / row["limit_us"] for row in rows], "--", color=LIMIT, label="bare loop")
    axes.plot(sizes, speeds, "o-", color=OURS, label="fastmarl, with its relative speed")
    for i, (size, speed, row) in enumerate(zip(sizes, speeds, rows, strict=True)):
        rises = speed < speeds[min(i + 1, len(speeds) - 1)]  # places the label next to the curve
        falls = speed < speeds[max(i - 1, 0)]
        axes.annotate(
            f"{row['relative_speed']:.2f}",
            (size, speed),
            xytext=(4 * falls - 4 * rises, 8),
            textcoords="offset points",
            ha="right" if rises else "left" if falls else "center",
            fontsize=8,
            bbox=LABEL_BOX,
        )
    if name == "workers":
        axes.set_ylim(0, 1.4 * max(speeds))
        axes.yaxis.set_major_formatter(EngFormatter())
    else:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        log_scale(axes.yaxis, EngFormatter())
        axes.margins(y=0.3)
    axes.margins(x=0.12)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xlabel(TITLES[name], fontsize=9)
    axes.set_ylabel("agent steps per second", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.legend(frameon=False, fontsize=8)

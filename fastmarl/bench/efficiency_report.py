"""A table and a picture of what `fastmarl bench efficiency` measured."""

from __future__ import annotations

from pathlib import Path

from fastmarl.report.plots import picture, ratio_bars
from fastmarl.report.records import Figures
from fastmarl.report.tables import Table

COLUMNS = {
    "environment": ("environment", ""),
    "agents": ("agents", ".1f"),
    "envs": ("envs", ""),
    "env_us": ("env", ".2f"),
    "network_us": ("network", ".2f"),
    "limit_us": ("bare\nloop", ".2f"),
    "runner_us": ("runner", ".2f"),
    "efficiency": ("relative\nspeed", ".3f"),
    "own_efficiency": ("own", ".3f"),
    "agent_steps_per_second": ("agent\nsteps/s", ",.0f"),
}


def tables(figures: Figures) -> list[Table]:
    """The only section is "figures": fields of `Efficiency`, and the name of the environment."""
    rows = figures["figures"]
    title = (
        f"µs per agent step, medians of {len(rows[0]['rounds'])} rounds, one torch thread; own: the bare loop draws "
        "actions as we do"
    )
    return [Table.of(title, COLUMNS, rows)]


def draw(figures: Figures, path: Path) -> None:
    """Relative speeds."""
    rows = figures["figures"]
    names = [f"{row['environment']}, {row['agents']:.3g} x {row['envs']}" for row in rows]
    ratios = [row["efficiency"] for row in rows]
    with picture(path, 8, 1.2 + 0.35 * len(rows)) as figure:
        ratio_bars(figure.subplots(), names, ratios, "{:.2f}", "relative speed (1: the bare loop's)")

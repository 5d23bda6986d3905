"""What `fastmarl sample` shows: two tables, and a picture of where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastmarl.bench.plots import OURS, open_frame


def summary_table(title: str, metrics: dict, seconds: float, efficiency: Any, backends: dict[str, str]) -> Any:
    """A rich table of what was sampled in so many seconds.

    Args:
        title: above it.
        metrics: a runner's report.
        seconds: spent in sample().
        efficiency: an Efficiency, or None.
        backends: what runs each module.
    """
    from rich.table import Table

    agent_steps = sum(metrics["num_agent_steps_sampled"].values())
    table = Table(title=title, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("env steps", f"{metrics['num_env_steps_sampled']:,}")
    table.add_row("agent steps", f"{agent_steps:,}")
    table.add_row("episodes", f"{metrics['num_episodes']:,}")
    if "episode_return_mean" in metrics:
        table.add_row("mean return", f"{metrics['episode_return_mean']:,.2f}")
        table.add_row("mean length", f"{metrics['episode_len_mean']:,.1f}")
    table.add_row("agent steps/s", f"{agent_steps / seconds:,.0f}")
    if efficiency is not None:
        table.add_row("limit of one process, agent steps/s", f"{1e6 / efficiency.limit_us:,.0f}")
        table.add_row("efficiency", f"{efficiency.efficiency:.3f}")
        table.add_row("... with our sampling in the limit", f"{efficiency.own_efficiency:.3f}")
    for module_id, backend in backends.items():
        table.add_row(f"inference of {module_id}", backend)
    return table


def stage_table(stage_ms: dict[str, float]) -> Any:
    """A rich table of the milliseconds per tick of each stage."""
    from rich.table import Table

    total = sum(stage_ms.values()) or 1.0
    table = Table(title="where the time goes")
    table.add_column("stage")
    table.add_column("ms per tick", justify="right")
    table.add_column("share", justify="right")
    for stage, ms in stage_ms.items():
        table.add_row(stage, f"{ms:.4f}", f"{ms / total:.1%}")
    return table


def draw_stages(stage_ms: dict[str, float], title: str, path: Path) -> None:
    """The same as bars, in a PNG."""
    from matplotlib.figure import Figure

    total = sum(stage_ms.values()) or 1.0
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(list(stage_ms), list(stage_ms.values()), color=OURS)
    axes.bar_label(bars, [f" {ms / total:.1%}" for ms in stage_ms.values()])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds per tick (one step of all envs)")
    axes.set_title(title)
    open_frame(axes)
    figure.savefig(path, dpi=150)

"""What `fastmarl sample` shows: two tables, a sentence, and a picture of where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastmarl.report.plots import bars, picture
from fastmarl.report.tables import Table

SUMMARY = (  # key of a figure, its name in the table, its format
    ("env_steps", "env steps", ",d"),
    ("agent_steps", "agent steps", ",d"),
    ("episodes", "episodes", ",d"),
    ("episode_return_mean", "mean return", ",.2f"),
    ("episode_len_mean", "mean length", ",.1f"),
    ("agent_steps_per_second", "agent steps/s", ",.0f"),
)
OF_ENVIRONMENT, OF_NETWORK = ("env", "reset"), "forward"  # stages


def summary_table(title: str, figures: dict[str, Any]) -> Table:
    """What was sampled; for the figures see `fastmarl.cli.sample`."""
    rows = [(name, f"{figures[key]:{form}}") for key, name, form in SUMMARY if key in figures]
    if (efficiency := figures.get("efficiency")) is not None:
        bare, ours = (f"{1e6 / us:,.0f}" for us in efficiency["median_round_us"])
        rows += [
            (f"median of {len(efficiency['rounds'])} rounds, agent steps/s: fastmarl", ours),
            ("... a bare loop in turn with it", bare),
            ("efficiency (relative speed)", f"{efficiency['efficiency']:.3f}"),
            ("... with our drawing of actions in the loop", f"{efficiency['own_efficiency']:.3f}"),
        ]
    rows += [(f"inference of {module_id}", backend) for module_id, backend in figures["inference_backends"].items()]
    return Table(title, (), rows)


def stage_table(stage_ms: dict[str, float]) -> Table:
    """The milliseconds per tick of each stage, and its share."""
    total = sum(stage_ms.values()) or 1.0
    columns = {"stage": ("stage", ""), "ms": ("ms per tick", ".4f"), "share": ("share", ".1%")}
    figures = [{"stage": stage, "ms": ms, "share": ms / total} for stage, ms in stage_ms.items()]
    return Table.of("where the time goes", columns, figures)


def sentence(figures: dict[str, Any]) -> str:
    """Where the time goes, and the relative speed if it was measured."""
    stage_ms = figures["stage_time_ms"]
    total = sum(stage_ms.values()) or 1.0
    env = round(100 * sum(stage_ms[stage] for stage in OF_ENVIRONMENT) / total)
    network = round(100 * stage_ms[OF_NETWORK] / total)
    text = f"{env} % of the time is the environment, {network} % the network, {100 - env - network} % fastmarl itself"
    if (efficiency := figures.get("efficiency")) is None:
        return f"{text}."
    bare, ours = (f"{1e6 / us:,.0f}" for us in efficiency["median_round_us"])
    rounds = len(efficiency["rounds"])
    return (
        f"{text}. In turn with a bare loop over the same environments and network, median of {rounds} rounds: {ours} "
        f"agent steps/s against {bare}, a relative speed of {efficiency['efficiency']:.2f}."
    )


def draw_stages(stage_ms: dict[str, float], title: str, path: Path) -> None:
    """The same as bars, in a picture."""
    total = sum(stage_ms.values()) or 1.0
    with picture(path, 7, 3.2) as figure:
        axes = figure.subplots()
        bars(axes, [*stage_ms], [*stage_ms.values()], [f"{ms / total:.1%}" for ms in stage_ms.values()])
        axes.set_xlabel("milliseconds per tick (one step of all envs)")
        axes.set_title(title)

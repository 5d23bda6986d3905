"""Tables and a picture of what `fastmarl bench rllib` measured."""

from pathlib import Path
from typing import Any

from fastmarl.bench.plots import OTHERS, OURS, open_frame
from fastmarl.bench.tables import Table

COLUMNS: dict[str, dict[str, tuple[str, str]]] = {  # section -> key of a figure -> (heading, format)
    "cases": {
        "case": ("sample()", ""),
        "agents": ("agents", ""),
        "envs": ("envs", ""),
        "rllib_env_steps_per_second": ("RLlib: env\nsteps/s", ",.0f"),
        "rllib_agent_steps_per_second": ("agent\nsteps/s", ",.0f"),
        "env_steps_per_second": ("fastmarl: env\nsteps/s", ",.0f"),
        "agent_steps_per_second": ("agent\nsteps/s", ",.0f"),
        "ratio": ("\nratio", ".2f"),
        "ratio_with_parts": ("parts\nmade", ".2f"),
        "ratio_with_metrics": ("with\nmetrics", ".2f"),
        "efficiency": ("relative\nspeed", ".3f"),
        "plain_efficiency": ("by plain\ntorch", ".3f"),
    },
    "growth": {
        "steps": ("env steps a call", ",d"),
        "rllib_us": ("RLlib, µs per agent step", ".2f"),
        "us": ("fastmarl", ".2f"),
    },
    "transfer": {
        "runner": ("object store", ""),
        "dumps_ms": ("dumps, ms", ".2f"),
        "loads_ms": ("loads, ms", ".2f"),
        "look_ms": ("first look, ms", ".2f"),
        "megabytes": ("MB", ".2f"),
        "buffers": ("buffers", ",d"),
    },
    "trip": {
        "runner": ("actor to driver", ""),
        "get_ms": ("ms", ".2f"),
        "look_ms": ("first look, ms", ".2f"),
    },
    "ppo": {
        "runner": ("PPO iteration", ""),
        "seconds": ("s", ".2f"),
        "sampling_seconds": ("sampling, s", ".2f"),
        "sampling_share": ("share", ".1%"),
    },
}


def table_of(section: str, figures: list[dict[str, Any]]) -> Table:
    """One section's figures; what qualifies them stands below it."""
    columns = COLUMNS[section]
    rows = []
    for row in figures:
        values = ((row[key], form) for key, (_, form) in columns.items())
        rows.append(["-" if value is None else f"{value:{form}}" for value, form in values])
    heading = [text for text, _ in columns.values()]
    return Table("", heading, rows, _notes(figures) if section == "cases" else ())


def _notes(cases: list[dict[str, Any]]) -> list[str]:
    few = [
        f"{row['case']}: RLlib's time is of {row['rllib_rounds']} round, not {row['rounds']}"
        for row in cases
        if row["rllib_rounds"] < row["rounds"]
    ]
    return few + [f"{row['case']}: RLlib's own loop, as {why}" for row in cases for why in row["slow_path_reasons"]]


def draw(cases: list[dict[str, Any]], growth: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG: bars of the ratios; beside them, if growth was measured, time over steps a call (log-log)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10 if growth else 6, 3.6), layout="constrained")
    bars, *others = figure.subplots(1, 1 + bool(growth), squeeze=False)[0]
    _draw_ratios(bars, cases)
    for lines in others:
        _draw_growth(lines, growth)
    for axes in figure.axes:
        open_frame(axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw_ratios(axes: Any, cases: list[dict[str, Any]]) -> None:
    bars = axes.barh([row["case"] for row in cases], [row["ratio"] for row in cases], color=OURS)
    axes.bar_label(bars, [f" {row['ratio']:.1f}x" for row in cases])
    axes.axvline(1, color=OTHERS, linewidth=1)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("times as fast as RLlib's runner")


def _draw_growth(axes: Any, growth: list[dict[str, Any]]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for key, name, color in (("rllib_us", "RLlib", OTHERS), ("us", "fastmarl", OURS)):
        points = [(row["steps"], row[key]) for row in growth if row[key] is not None]
        axes.loglog([steps for steps, _ in points], [us for _, us in points], "o-", color=color, label=name)
    axes.set_xlabel("env steps in one call (CartPole, 8 x 8)")
    axes.set_ylabel("microseconds per agent step")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False)

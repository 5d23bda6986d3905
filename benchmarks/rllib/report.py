"""Tables and plots of the results of `python -m benchmarks.rllib`."""

from pathlib import Path
from typing import Any

from fastmarl.report.plots import OTHERS, OURS, log_scale, picture, ratio_bars
from fastmarl.report.records import Figures, Row
from fastmarl.report.tables import Columns, Table

COLUMNS: dict[str, Columns] = {  # by section
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
        "relative_speed": ("relative\nspeed", ".3f"),
        "plain_relative_speed": ("by plain\ntorch", ".3f"),
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
        "buffers": ("buffers", ",.0f"),
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


def tables(figures: Figures) -> list[Table]:
    """Return one table per section, with its notes below."""
    return [
        Table.of("", COLUMNS[section], rows, _notes(rows) if section == "cases" else ())
        for section, rows in figures.items()
    ]


def _notes(cases: list[Row]) -> list[str]:
    few = [
        f"{row['case']}: RLlib's time is of {row['rllib_rounds']} round, not {row['rounds']}"
        for row in cases
        if row["rllib_rounds"] < row["rounds"]
    ]
    return few + [f"{row['case']}: RLlib's own loop, as {why}" for row in cases for why in row["slow_path_reasons"]]


def draw(figures: Figures, path: Path) -> None:
    """Plot the ratios as bars, and the times over steps per call on logarithmic axes, as far as they were measured."""
    sections = [section for section in DRAWN if section in figures]
    with picture(path, max(6, 5 * len(sections)), 3.6) as figure:
        for place, section in enumerate(sections, start=1):
            DRAWN[section](figure.add_subplot(1, len(sections), place), figures[section])


def _draw_ratios(axes: Any, cases: list[Row]) -> None:
    ratios = [row["ratio"] for row in cases]
    ratio_bars(axes, [row["case"] for row in cases], ratios, "{:.1f}x", "times as fast as RLlib's runner")


def _draw_growth(axes: Any, growth: list[Row]) -> None:
    for key, name, color in (("rllib_us", "RLlib", OTHERS), ("us", "fastmarl", OURS)):
        points = [(row["steps"], row[key]) for row in growth if row[key] is not None]
        axes.plot([steps for steps, _ in points], [us for _, us in points], "o-", color=color, label=name)
    axes.set_xlabel("env steps in one call (CartPole, 8 x 8)")
    axes.set_ylabel("microseconds per agent step")
    for axis in (axes.xaxis, axes.yaxis):
        log_scale(axis, "{x:,.0f}")
    axes.legend(frameon=False)


DRAWN = {"cases": _draw_ratios, "growth": _draw_growth}

"""Tables and plots of the results of `python -m benchmarks.peers`."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.peers.entries import ENV_KINDS, HALVES, OURS, TITLES
from benchmarks.peers.measure import MEASURED
from fastmarl.report import plots
from fastmarl.report.records import Figures, Row
from fastmarl.report.tables import Table

LIMIT = "limit"
LEGEND = (
    "Agent steps per second; in brackets: as a multiple of fastmarl's, and of the bare loop's in one process, which"
    " runs the bare environments and the bare network one after the other. Medians of rounds in which all had a turn."
)


@dataclass(frozen=True)
class Cell:
    """One sampler in one setting: medians over rounds in which the samplers took turns."""

    agent_steps_per_second: float
    to_ours: float | None
    """Its speed / ours; None if ours was not measured."""
    to_limit: float | None
    """Its speed / the speed of the limit."""


def cells(measured: Row) -> dict[str, Cell]:
    """Return the cells of all samplers measured in this setting by name, including "limit".

    The limit is that of one process, 1 / (1 / environments + 1 / network): it steps the bare environments, then calls
    the bare network.
    """
    speeds = {
        result["peer"]: result["agent_steps_per_second"]
        for result in measured["results"]
        if result["status"] == MEASURED
    }
    halves = [speeds.pop(entry.name, None) for entry in HALVES]
    if all(halves):
        speeds[LIMIT] = [1 / (1 / env + 1 / net) for env, net in zip(*halves, strict=True)]
    return {
        name: Cell(
            statistics.median(of_rounds), _ratio(of_rounds, speeds.get(OURS)), _ratio(of_rounds, speeds.get(LIMIT))
        )
        for name, of_rounds in speeds.items()
    }


def _ratio(speeds: list[float], others: list[float] | None) -> float | None:
    return None if others is None else statistics.median(a / b for a, b in zip(speeds, others, strict=True))


def order(measured: Row) -> tuple:
    """Return the sort key of a setting.

    A setting is replaced as a whole, since only figures that were measured in turn are comparable.
    """
    return measured["env"] != "spread", measured["num_workers"], measured["num_envs"]


def tables(figures: Figures) -> list[Table]:
    """Return one table per environment and number of workers, fastest samplers first.

    A cell is "agent steps/s (x ours, of the limit)". A sampler without any result has a row with the reason.
    """
    return [Table(_title(of_table[0]), ["", *map(_envs, of_table)], _rows(of_table)) for of_table in _by_table(figures)]


def _by_table(figures: Figures) -> list[list[Row]]:
    """Group the settings, the only section, by all but the number of envs."""
    return [[*of_table] for _, of_table in groupby(figures["settings"], itemgetter("env", "num_workers"))]


def _title(measured: Row) -> str:
    return f"{ENV_KINDS[measured['env']]}, {_processes(measured)}"


def _processes(measured: Row) -> str:
    workers = measured["num_workers"]
    return f"{workers} workers" if workers else "one process"


def _envs(measured: Row) -> str:
    return f"{measured['num_envs']} env{'s' * (measured['num_envs'] > 1)}"


def _rows(of_table: list[Row]) -> list[list[str]]:
    columns = [cells(measured) for measured in of_table]
    halves = [entry.name for entry in HALVES]
    names = dict.fromkeys(result["peer"] for measured in of_table for result in measured["results"])
    best = {
        name: max((column[name].agent_steps_per_second for column in columns if name in column), default=0.0)
        for name in names
        if name not in halves
    }
    rows = []
    for name in (LIMIT, *sorted(best, key=lambda name: -best[name])):
        texts = [
            _cell_text(column[name], name) if name in column else _why(name, measured)
            for column, measured in zip(columns, of_table, strict=True)
        ]
        rows.append(["bare loop" if name == LIMIT else TITLES.get(name, name), *texts])
    return rows


def _cell_text(cell: Cell, name: str) -> str:
    ratios = [cell.to_ours, None if name == LIMIT else cell.to_limit]
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios if ratio is not None)
    return f"{cell.agent_steps_per_second:,.0f} ({shown})" if shown else f"{cell.agent_steps_per_second:,.0f}"


def _why(name: str, measured: Row) -> str:
    for result in measured["results"]:
        if result["peer"] == name:
            return result["error"] if result["status"] != MEASURED else ""
    return "not measured"


def setups(figures: Figures) -> str:
    """Return a line for each sampler: versions, and the setup with the most envs for each number of workers."""
    versions: dict[str, str] = {}
    configs: dict[str, dict[str, str]] = {}
    for measured in figures["settings"]:
        place = _processes(measured)
        for result in (result for result in measured["results"] if "config" in result):
            name = result["peer"]
            versions[name] = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
            config = ", ".join(f"{key} {value}" for key, value in result["config"].items())
            configs.setdefault(name, {})[place] = f"{place}, {measured['num_envs']} envs: {config}"
    lines = [f"- **{TITLES[name]}** ({versions[name]}). {'. '.join(configs[name].values())}." for name in configs]
    return "\n".join(["## How each was set up", "", *lines])


def draw(figures: Figures, path: Path) -> None:
    """Plot agent steps per second as bars: a row of plots for each table, a plot for each number of envs."""
    of_tables = _by_table(figures)
    columns = max(map(len, of_tables))
    with plots.picture(path, 4.3 * columns + 1, 2.9 * len(of_tables)) as figure:
        for i, of_table in enumerate(of_tables):
            for j, measured in enumerate(of_table, start=1):
                _draw_bars(figure.add_subplot(len(of_tables), columns, i * columns + j), measured)
        figure.suptitle("agent steps per second; dashed: the bare loop, in one process", fontsize=10)


def _draw_bars(axes: Any, measured: Row) -> None:
    found = cells(measured)
    limit = found.pop(LIMIT, None)
    by_speed = sorted(found, key=lambda name: -found[name].agent_steps_per_second)
    colors = [plots.OURS if name.startswith(OURS) else plots.OTHERS for name in by_speed]
    speeds = [found[name].agent_steps_per_second for name in by_speed]
    plots.bars(axes, [TITLES[name] for name in by_speed], speeds, [f"{speed:,.0f}" for speed in speeds], colors)
    if limit is not None:
        plots.limit_line(axes, limit.agent_steps_per_second)
    axes.set_title(f"{ENV_KINDS[measured['env']]}\n{_processes(measured)}, {_envs(measured)}", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=4)

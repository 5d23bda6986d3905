"""Tables and a picture of what `fastmarl bench peers` measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastmarl.bench import plots
from fastmarl.bench.peers.entries import ENV_KINDS, ENVIRONMENT, HALVES, NETWORK, OURS, TITLES
from fastmarl.bench.peers.measure import MEASURED

LIMIT = "limit"
LEGEND = (
    "Agent steps per second; in brackets: as a multiple of fastmarl's, and of the bare loop's in one process, which"
    " runs the bare environments and the bare network one after the other. Medians of rounds in which all had a turn."
)


@dataclass(frozen=True)
class Cell:
    """One sampler at one setting: medians over the rounds, whose figures were taken in turn."""

    agent_steps_per_second: float
    to_ours: float | None
    """Its speed / ours; None: ours was not measured."""
    to_limit: float | None
    """Its speed / the limit's."""


def cells(measured: dict[str, Any]) -> dict[str, Cell]:
    """By name of a sampler that was measured at this setting, "limit" among them.

    The limit is that of one process, 1 / (1 / environments + 1 / network): stepping the bare environments and asking
    the bare network, one after the other.
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


def tables(settings: list[dict[str, Any]]) -> list[tuple[str, list[list[str]]]]:
    """(title, rows of texts, the heading first) for each environment and number of workers; the quickest come first.

    A cell is "agent steps/s, x ours, of the limit"; who is not measured anywhere has a row that says why.
    """
    return [(_title(of_table[0]), _rows(of_table)) for of_table in _by_table(settings)]


def markdown(settings: list[dict[str, Any]]) -> str:
    """The tables, what each sampler was told, and the versions."""
    parts = [LEGEND]
    for title, rows in tables(settings):
        parts.append(f"## {title}\n\n{_markdown_table(rows)}")
    parts.append("## How each was set up\n\n" + "\n".join(_told(settings)))
    return "\n\n".join(parts) + "\n"


def _by_table(settings: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    grouped: dict[tuple, list[dict[str, Any]]] = {}
    for measured in settings:
        grouped.setdefault((measured["env"], measured["num_workers"]), []).append(measured)
    return [*grouped.values()]


def _title(measured: dict[str, Any]) -> str:
    return f"{ENV_KINDS[measured['env']]}, {_processes(measured)}"


def _processes(measured: dict[str, Any]) -> str:
    workers = measured["num_workers"]
    return f"{workers} workers" if workers else "one process"


def _envs(measured: dict[str, Any]) -> str:
    return f"{measured['num_envs']} env{'s' * (measured['num_envs'] > 1)}"


def _rows(of_table: list[dict[str, Any]]) -> list[list[str]]:
    columns = [cells(measured) for measured in of_table]
    names = dict.fromkeys(result["peer"] for measured in of_table for result in measured["results"])
    shown = [name for name in names if name not in (ENVIRONMENT.name, NETWORK.name)]
    by_speed = sorted(
        shown, key=lambda name: -max((c[name].agent_steps_per_second for c in columns if name in c), default=0)
    )
    heading = ["", *map(_envs, of_table)]
    rows = [heading]
    for name in (LIMIT, *by_speed):
        texts = [
            _cell_text(column.get(name), name) or _why(name, measured)
            for column, measured in zip(columns, of_table, strict=True)
        ]
        rows.append(["bare loop" if name == LIMIT else TITLES.get(name, name), *texts])
    return rows


def _cell_text(cell: Cell | None, name: str) -> str:
    if cell is None:
        return ""
    ratios = [cell.to_ours, None if name == LIMIT else cell.to_limit]
    told = ", ".join(f"{ratio:.2f}" for ratio in ratios if ratio is not None)
    return f"{cell.agent_steps_per_second:,.0f} ({told})" if told else f"{cell.agent_steps_per_second:,.0f}"


def _why(name: str, measured: dict[str, Any]) -> str:
    for result in measured["results"]:
        if result["peer"] == name:
            return result["error"] if result["status"] != MEASURED else ""
    return "not measured"


def _markdown_table(rows: list[list[str]]) -> str:
    heading, *others = [[text.replace("|", "\\|") for text in row] for row in rows]
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _told(settings: list[dict[str, Any]]) -> list[str]:
    """A line for each sampler: versions, and how it was set up for the most envs of each number of workers."""
    versions: dict[str, str] = {}
    configs: dict[str, dict[str, str]] = {}
    for measured in settings:
        place = f"{measured['num_workers']} workers" if measured["num_workers"] else "one process"
        for result in (result for result in measured["results"] if "config" in result):
            name = result["peer"]
            versions[name] = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
            config = ", ".join(f"{key} {value}" for key, value in result["config"].items())
            configs.setdefault(name, {})[place] = f"{place}, {measured['num_envs']} envs: {config}"
    return [f"- **{TITLES[name]}** ({versions[name]}). {'. '.join(configs[name].values())}." for name in configs]


def draw(settings: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG: bars of agent steps per second, a line of plots for each table, a plot for each number of envs."""
    from matplotlib.figure import Figure

    of_tables = _by_table(settings)
    columns = max(map(len, of_tables))
    figure = Figure(figsize=(4.3 * columns + 1, 2.9 * len(of_tables)), layout="constrained")
    grid = figure.subplots(len(of_tables), columns, squeeze=False)
    for line, of_table in zip(grid, of_tables, strict=True):
        for i, axes in enumerate(line):
            if i < len(of_table):
                _draw_bars(axes, of_table[i])
            else:
                axes.set_axis_off()
    figure.suptitle("agent steps per second; dashed: the bare loop, in one process", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw_bars(axes: Any, measured: dict[str, Any]) -> None:
    found = cells(measured)
    limit = found.pop(LIMIT, None)
    by_speed = sorted(found, key=lambda name: -found[name].agent_steps_per_second)
    colors = [plots.OURS if name.startswith(OURS) else plots.OTHERS for name in by_speed]
    speeds = [found[name].agent_steps_per_second for name in by_speed]
    bars = axes.barh([TITLES[name] for name in by_speed], speeds, color=colors)
    for label in axes.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], padding=4, fontsize=8):
        label.set_bbox(plots.LABEL_BOX)  # the dashed line may pass behind
    if limit is not None:
        axes.axvline(limit.agent_steps_per_second, color=plots.LIMIT, linewidth=1, linestyle="--", zorder=0)
    axes.invert_yaxis()
    axes.margins(x=0.22)
    axes.set_title(f"{ENV_KINDS[measured['env']]}\n{_processes(measured)}, {_envs(measured)}", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=4)
    plots.open_frame(axes)

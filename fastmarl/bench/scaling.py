"""How speed and efficiency change with agents, environments, the network's size and worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.bench import plots
from fastmarl.bench.efficiency import measure_efficiency
from fastmarl.bench.tables import Table
from fastmarl.config import EnvRunnerConfig
from fastmarl.envs.arrays import ArrayEnv, StepArrays
from fastmarl.envs.context import EnvContext

EPISODE_LENGTH = 100


class ReadyArrays(ArrayEnv):
    """A batch that returns arrays made beforehand, so all time that passes is the sampler's own.

    Args:
        config: "agents": how many.
    """

    def __init__(self, config: EnvContext):
        box = gym.spaces.Box(-np.inf, np.inf, (18,), np.float32)
        super().__init__(
            config.num_envs, {"all": range(config["agents"])}, {"all": box}, {"all": gym.spaces.Discrete(5)}
        )
        rng = np.random.default_rng(0)
        self._obs = rng.standard_normal((config.num_envs, config["agents"], *box.shape), np.float32)
        self._t = np.zeros(config.num_envs, np.int64)

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        self._t[env_indices] = 0
        out.groups["all"].obs[env_indices] = self._obs[env_indices]

    def step(self, actions: dict[str, np.ndarray], out: StepArrays) -> None:
        self._t += 1
        out.groups["all"].obs[:] = self._obs
        out.groups["all"].rewards[:] = 1
        np.equal(self._t, EPISODE_LENGTH, out=out.truncated)


@dataclass(frozen=True)
class Series:
    """One thing that grows while the others stay."""

    title: str
    sizes: tuple[int, ...]
    config: Callable[[int], dict[str, Any]]
    """Of a size -> options of EnvRunnerConfig."""


def _ready(agents: int, envs: int, hiddens: int = 64) -> dict[str, Any]:
    return {
        "env": ReadyArrays,
        "env_config": {"agents": agents},
        "num_envs_per_env_runner": envs,
        "model_config": {"fcnet_hiddens": [hiddens, hiddens]},
    }


def _in_workers(workers: int) -> dict[str, Any]:
    options = {"gym_env_vectorize_mode": "async", "num_env_workers": workers} if workers else {}
    return {
        "env": "mpe2.simple_spread_v3",
        "num_envs_per_env_runner": 16,
        "model_config": {"fcnet_hiddens": [64, 64]},
        **options,
    }


SERIES = {
    "agents": Series("agents in each of 16 envs", (2, 8, 32, 128, 1000), lambda n: _ready(agents=n, envs=16)),
    "envs": Series("envs of 4 agents", (1, 4, 16, 64, 256, 1024, 4096), lambda n: _ready(agents=4, envs=n)),
    "network": Series(
        "units in each of two layers, 4 agents x 256 envs",
        (16, 64, 256, 512),
        lambda n: _ready(agents=4, envs=256, hiddens=n),
    ),
    "workers": Series(
        "worker processes (0: none), simple_spread, 16 envs",
        (0, *range(1, 1 + min(16, os.cpu_count() or 1))),
        _in_workers,
    ),
}


def measure_series(
    name: str, *, rounds: int = 3, seconds: float = 0.2, progress: Callable[[str], None] = lambda text: None
) -> Iterator[dict[str, Any]]:
    """The fields of `Efficiency` and "size" for each size, as soon as it is measured; see `measure_efficiency`."""
    series = SERIES[name]
    for size in series.sizes:
        progress(f"measuring {size:,} {series.title}")
        config = EnvRunnerConfig(**series.config(size), seed=0)
        yield {"size": size, **measure_efficiency(config, rounds=rounds, seconds=seconds).as_dict()}


def table_of(name: str, figures: list[dict[str, Any]]) -> Table:
    """One series; times in microseconds."""
    rows = []
    for row in figures:
        ratios = (f"{row[key]:.2f}" for key in ("efficiency", "own_efficiency"))
        times = (f"{row[key]:.3f}" for key in ("runner_us", "limit_us"))
        rows.append((f"{row['size']:,}", f"{row['agent_steps_per_second']:,.0f}", *times, *ratios))
    heading = (SERIES[name].title, "agent steps/s", "µs per agent step", "bare loop", "relative\nspeed", "own")
    return Table("", heading, rows)


def draw(of_series: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Write a PNG: agent steps per second of runner and bare loop, the relative speed at each point."""
    from matplotlib.figure import Figure

    columns = min(2, len(of_series))
    rows = -(-len(of_series) // columns)
    figure = Figure(figsize=(5 * columns, 3.4 * rows), layout="constrained")
    for place, (name, figures) in enumerate(of_series.items(), start=1):
        _draw_series(figure.add_subplot(rows, columns, place), name, figures)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _draw_series(axes: Any, name: str, figures: list[dict[str, Any]]) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, NullLocator

    sizes = [row["size"] for row in figures]
    speeds = [row["agent_steps_per_second"] for row in figures]
    axes.plot(sizes, [1e6 / row["limit_us"] for row in figures], "--", color=plots.LIMIT, label="bare loop")
    axes.plot(sizes, speeds, "o-", color=plots.OURS, label="fastmarl, with its relative speed")
    for i, (size, speed, row) in enumerate(zip(sizes, speeds, figures, strict=True)):
        rises = speed < speeds[min(i + 1, len(speeds) - 1)]  # then the curve is to the right of a label above it
        falls = speed < speeds[max(i - 1, 0)]
        axes.annotate(
            f"{row['efficiency']:.2f}",
            (size, speed),
            xytext=(4 * falls - 4 * rises, 8),
            textcoords="offset points",
            ha="right" if rises else "left" if falls else "center",
            fontsize=8,
            bbox=plots.LABEL_BOX,
        )
    if name == "workers":
        axes.set_ylim(0, 1.4 * max(speeds))
    else:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.margins(y=0.3)
    axes.margins(x=0.12)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.set_xlabel(SERIES[name].title, fontsize=9)
    axes.set_ylabel("agent steps per second", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.legend(frameon=False, fontsize=8)
    plots.open_frame(axes)

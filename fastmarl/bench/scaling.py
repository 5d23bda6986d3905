"""Measures speed for different numbers of agents, environments, network units and worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.bench.relative_speed import measure_relative_speed
from fastmarl.bench.relative_speed_table import EPISODE_LENGTH
from fastmarl.bench.reports import TITLES
from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.envs.context import EnvContext
from fastmarl.report.records import Row


class ReadyArrays(ArrayEnv):
    """A batch that returns ready-made arrays, so that all time is spent in the sampler.

    Args:
        config: "agents": number of agents in each environment.
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
    """A series of measurements that differ in one size."""

    sizes: tuple[int, ...]
    config: Callable[[int], dict[str, Any]]
    """size -> options of EnvRunnerConfig"""


def _ready(agents: int, envs: int, hiddens: int = 64) -> dict[str, Any]:
    return {
        "env": ReadyArrays,
        "env_config": {"agents": agents},
        "num_envs_per_env_runner": envs,
        "model_config": {"fcnet_hiddens": [hiddens, hiddens]},
    }


def _in_workers(workers: int) -> dict[str, Any]:
    return {
        "env": "mpe2.simple_spread_v3",
        "num_envs_per_env_runner": 16,
        "model_config": {"fcnet_hiddens": [64, 64]},
        "gym_env_vectorize_mode": "async" if workers else "sync",
        "num_env_workers": workers,
    }


SERIES = {
    "agents": Series((2, 8, 32, 128, 1000), lambda n: _ready(agents=n, envs=16)),
    "envs": Series((1, 4, 16, 64, 256, 1024, 4096), lambda n: _ready(agents=4, envs=n)),
    "network": Series((16, 64, 256, 512), lambda n: _ready(agents=4, envs=256, hiddens=n)),
    "workers": Series((0, *range(1, 1 + min(16, os.cpu_count() or 1))), _in_workers),
}


def measure_series(
    name: str, *, rounds: int = 3, seconds: float = 0.2, progress: Callable[[str], None] = lambda text: None
) -> Iterator[Row]:
    """Measure each size of a series and yield a dict of "series", "size" and the fields of `RelativeSpeed`."""
    series = SERIES[name]
    for size in series.sizes:
        progress(f"measuring {size:,} {TITLES[name]}")
        config = EnvRunnerConfig(**series.config(size), seed=0)
        measured = measure_relative_speed(config, rounds=rounds, seconds=seconds)
        yield {"series": name, "size": size, **measured.as_dict()}

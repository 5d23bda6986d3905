"""Tasks of the benchmark of Papoudakis et al. (2021) with their budgets and published returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CRITICS = {"ippo": "own", "mappo": "central"}  # algorithm -> what its critic sees


@dataclass(frozen=True)
class Task:
    """A task and EPyMARL's hyperparameters for it.

    Attributes:
        env: Name of the env.
        env_config: Its options.
        fragment: Env steps of each of the ten envs between updates: the limit of an episode.
        steps: Env steps of a run.
        published: Algorithm -> mean and half a 95 % confidence interval of the best return, over five seeds.
        options: Hyperparameters that differ from those of most tasks.
    """

    env: str
    env_config: Mapping[str, Any]
    fragment: int
    steps: int
    published: Mapping[str, tuple[float, float]]
    options: Mapping[str, Any] = field(default_factory=dict)


def _foraging(name: str, ippo: tuple[float, float], mappo: tuple[float, float]) -> Task:
    return Task("fastmarl.lbforaging", {"name": name}, 50, 20_000_000, {"ippo": ippo, "mappo": mappo})


TASKS = {
    "lbf-8x8-2p-2f-coop": _foraging("Foraging-8x8-2p-2f-coop-v3", (1.0, 0.0), (1.0, 0.0)),
    "lbf-2s-8x8-2p-2f-coop": _foraging("Foraging-2s-8x8-2p-2f-coop-v3", (0.78, 0.05), (0.85, 0.06)),
    "lbf-10x10-3p-3f": _foraging("Foraging-10x10-3p-3f-v3", (0.98, 0.01), (0.99, 0.01)),
}

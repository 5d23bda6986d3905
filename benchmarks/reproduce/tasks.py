"""Tasks of the benchmark of Papoudakis et al. (2021) with their budgets and published returns."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALGORITHMS = {  # published name -> arguments of `fastmarl train`
    "ippo": ("epymarl", "--critic", "own"),
    "mappo": ("epymarl", "--critic", "central"),
    "ippo-gru": ("epymarl", "--critic", "own", "--gru"),
    "vdn": ("vdn",),
    "qmix": ("qmix",),
}
OFF_POLICY = {"vdn": 0.1, "qmix": 0.1}  # share of the on-policy budget
EVALUATIONS, EPISODES = 40, 100  # of a run, and of an evaluation


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task and EPyMARL's hyperparameters for it.

    Attributes:
        original: Name of the Python env of which `env` is the compiled form.
        env: Name of the compiled env.
        env_config: Its options.
        limit: Env steps after which an episode is truncated, and of each of the ten envs between updates.
        steps: Env steps of a run.
        algorithms: Those that are trained.
        published: Algorithm -> mean and half a 95 % confidence interval of the maximum return over five seeds, from
            quotations of table 3.
        unit: (factor, summand) that convert a return to the unit of the published ones.
        options: Hyperparameters of IPPO and MAPPO that differ from the defaults of `fastmarl train epymarl`.
        flags: Switches of `fastmarl train epymarl`.
        seeds: Number of seeds.
    """

    original: str
    env: str
    env_config: Mapping[str, Any] = field(default_factory=dict)
    limit: int
    steps: int
    algorithms: tuple[str, ...]
    published: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    unit: tuple[float, float] = (1.0, 0.0)
    options: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    seeds: int = 3

    def steps_of(self, algorithm: str) -> int:
        return round(self.steps * OFF_POLICY.get(algorithm, 1.0))

    def arguments(self, algorithm: str) -> list[str]:
        """Return the arguments of `fastmarl train` for an algorithm, without folder and seed."""
        steps = self.steps_of(algorithm)
        options = {"env": self.env, "env-config": json.dumps(self.env_config), "max-steps": self.limit, "steps": steps,
                   "evaluate-every": steps // EVALUATIONS, "episodes": EPISODES}  # fmt: skip
        flags = ["--hiddens", "128", "128"]  # the default of epymarl
        if algorithm not in OFF_POLICY:
            options |= {"fragment": self.limit, **self.options}
            flags += ["--explore", *self.flags]
        given = (part for name, value in options.items() for part in (f"--{name}", str(value)))
        return [*ALGORITHMS[algorithm], *given, *flags]


def _foraging(name: str, algorithms: tuple[str, ...] = ("ippo", "mappo")) -> Task:
    return Task(
        original=f"lbforaging:{name}",
        env="fastmarl.lbforaging",
        env_config={"name": name, "max_episode_steps": 51},
        limit=50,
        steps=20_000_000,
        algorithms=algorithms,
    )


def _warehouse(name: str, algorithms: tuple[str, ...]) -> Task:
    return Task(
        original=f"rware:{name}",
        env="fastmarl.rware",
        env_config={"name": name, "max_steps": None},
        limit=500,
        steps=40_000_000,
        algorithms=algorithms,
        options={"lr": 5e-4, "n-steps": 10},
    )


TASKS = {
    "lbf-8x8-2p-2f-coop": _foraging("Foraging-8x8-2p-2f-coop-v3"),
    "lbf-2s-8x8-2p-2f-coop": _foraging("Foraging-2s-8x8-2p-2f-coop-v3", ("ippo", "mappo", "ippo-gru")),
    "lbf-10x10-3p-3f": _foraging("Foraging-10x10-3p-3f-v3"),
    "mpe-simple-spread": Task(
        original="mpe2.simple_spread_v3",
        env="fastmarl.simple_spread",
        limit=25,
        steps=20_000_000,
        algorithms=("ippo", "mappo", "vdn", "qmix"),
        published={
            "ippo": (-133.86, 3.67),
            "mappo": (-133.54, 3.08),
            "vdn": (-131.03, 1.85),
            "qmix": (-126.62, 2.96),
        },
        unit=(2.0, -75.0),  # there, agents share their rewards, and collide with themselves in each of 25 steps
        flags=("--normalize-rewards",),
        seeds=5,
    ),
    "rware-tiny-2ag": _warehouse("rware-tiny-2ag-v2", ("ippo", "mappo")),
    "rware-tiny-4ag": _warehouse("rware-tiny-4ag-v2", ("ippo",)),
}

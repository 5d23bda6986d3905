"""Measures how close a runner comes to the limit set by its environments and modules.

The limit is a bare loop that steps the same environments with ready-made actions, plus forward passes of the same
modules on ready-made batches, one per forward pass of the runner, with actions and log-probabilities from
torch.distributions. Neither of them stores results. A stricter limit samples actions in fewer torch operations. Both
limits use torch: where native code replaces it (core/nets/native.py), a runner may be faster than its limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import torch

from fastmarl.bench.bare_envs import MAX_CALLS, TICKS_PER_CALL, BareBatch, BareEnvs, bare_envs
from fastmarl.bench.bare_network import BareNetwork, sample_as_torch_does, sample_as_we_do
from fastmarl.core.config import OF_WORKERS, EnvRunnerConfig
from fastmarl.core.objects.public import public
from fastmarl.runner.runner import MultiAgentEnvRunner


@public("fastmarl.bench")
@dataclass(frozen=True, kw_only=True)
class RelativeSpeed:
    """Times in microseconds per agent step (one action of one agent), each the median over the rounds."""

    envs: int
    """Number of environments in the runner."""
    agents: float
    """Mean number of acting agents per env step."""
    env_us: float
    """Stepping the bare environments."""
    network_us: float
    """Forward passes, and action sampling with torch.distributions."""
    limit_us: float
    """Bare environments and network together."""
    runner_us: float
    """`sample()` of the runner."""
    relative_speed: float
    """Median over the rounds of the ratio limit / runner."""
    rounds: tuple[float, ...]
    """The ratios of all rounds."""
    median_round_us: tuple[float, float]
    """Times of the limit and the runner in the round with the median ratio (the lower of two)."""
    own_network_us: float
    """Forward passes, and action sampling with our distributions, which use fewer torch operations."""
    own_relative_speed: float
    """Median of the ratios (env + own network) / runner, a stricter limit."""

    @property
    def agent_steps_per_second(self) -> float:
        """Agent steps per second of the runner."""
        return 1e6 / self.runner_us

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a dict, for JSON."""
        return {**asdict(self), "agent_steps_per_second": self.agent_steps_per_second}


def measure_relative_speed(config: EnvRunnerConfig, *, rounds: int = 5, seconds: float = 1.0) -> RelativeSpeed:
    """Measure a runner with this config and its limit alternately, in this process and on a single thread.

    Args:
        config: Config of the runner; seed 0 is used if it has none.
        rounds: Number of rounds; each times the environments, the modules and the runner once.
        seconds: Approximate time limit for each measurement; every environment makes at least 128 steps.

    Returns:
        The medians over the rounds.

    Raises:
        EnvCheckError: If the environment cannot be stepped with ready-made actions, because different agents act after
            the same `reset(seed)` and the same actions.
    """
    config = replace(config, seed=0 if config.seed is None else config.seed, num_threads=1)
    with one_torch_thread():
        runner = MultiAgentEnvRunner(config)
        of_workers = {name: getattr(EnvRunnerConfig, name) for name in OF_WORKERS}  # reset to their defaults
        in_turn = replace(config, gym_env_vectorize_mode="sync", env_batch_size=None, worker_num_splits=1, **of_workers)
        owner_of_bare_envs = MultiAgentEnvRunner(in_turn)
        try:
            network = BareNetwork(runner)
            begun = perf_counter()
            runner.sample(num_timesteps=TICKS_PER_CALL * runner.num_envs, explore=True)
            most_calls = max(1, min(MAX_CALLS, int(seconds / (perf_counter() - begun))))
            loop = bare_envs(owner_of_bare_envs.env.envs, config.seed or 0, seconds, most_calls)
            return _measure(runner, loop, network, rounds)
        finally:
            runner.stop()
            owner_of_bare_envs.stop()


def _measure(
    runner: MultiAgentEnvRunner, loop: BareEnvs | BareBatch, network: BareNetwork, rounds: int
) -> RelativeSpeed:
    measured = [
        (
            loop.run(),
            network.run(loop.calls, sample_as_torch_does),
            network.run(loop.calls, sample_as_we_do),
            _run(runner, loop.calls),
        )
        for _ in range(rounds)
    ]
    ratios = tuple((env + net) / total for env, net, _, total in measured)
    medians = [statistics.median(column) for column in zip(*measured, strict=True)]
    env_us, network_us, own_network_us, runner_us = medians
    env, net, _, total = measured[ratios.index(statistics.median_low(ratios))]
    return RelativeSpeed(
        envs=runner.num_envs,
        agents=loop.agent_steps / loop.env_steps,
        env_us=env_us,
        network_us=network_us,
        limit_us=statistics.median(row[0] + row[1] for row in measured),
        runner_us=runner_us,
        relative_speed=statistics.median(ratios),
        rounds=ratios,
        median_round_us=(env + net, total),
        own_network_us=own_network_us,
        own_relative_speed=statistics.median((row[0] + row[2]) / row[3] for row in measured),
    )


def _run(runner: MultiAgentEnvRunner, calls: int) -> float:
    """Call sample() `calls` times, resetting first like the bare loop; return the microseconds per agent step."""
    runner.get_metrics()
    begun = perf_counter()
    for i in range(calls):
        runner.sample(num_timesteps=TICKS_PER_CALL * runner.num_envs, explore=True, force_reset=i == 0)
    seconds = perf_counter() - begun
    return 1e6 * seconds / sum(runner.get_metrics()["num_agent_steps_sampled"].values())


@contextmanager
def one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

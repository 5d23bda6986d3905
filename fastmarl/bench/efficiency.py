"""How close a runner comes to the limit that its environments and modules set.

The limit is a bare loop that steps the same environments with ready-made actions, plus the same modules' forward passes
on ready batches, one for each that the runner makes, with actions and log-probabilities by torch.distributions. Neither
records anything. It is told beside a stricter limit, which samples actions in few torch operations. Both are those of
torch: where lean inference stands in for it (see lean.py), a runner may be quicker than its limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from fastmarl.bench.bare_envs import MAX_CALLS, TICKS_PER_CALL, BareBatch, BareEnvs, bare_envs
from fastmarl.columns import Columns
from fastmarl.config import OF_WORKERS, EnvRunnerConfig
from fastmarl.distributions import Categorical, DiagGaussian
from fastmarl.runner.runner import MultiAgentEnvRunner
from fastmarl.spaces import flatten_struct, map_struct


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Times in microseconds per agent step (an action taken), each the median of the rounds."""

    envs: int
    agents: float
    """Agents that act in one step of an env, on average."""
    env_us: float
    """Stepping the bare environments."""
    network_us: float
    """Forward passes, and action sampling with torch.distributions."""
    limit_us: float
    """Both together."""
    runner_us: float
    efficiency: float
    """Median of the rounds' ratios limit / runner."""
    rounds: tuple[float, ...]
    """Those ratios."""
    median_round_us: tuple[float, float]
    """Limit and runner in the round whose ratio is the median (of two, the lower one's)."""
    own_network_us: float
    """Forward passes, and action sampling in the few torch operations of our own distributions."""
    own_efficiency: float
    """Median of the ratios (env + own network) / runner: a limit that has our own sampling to its advantage."""

    @property
    def agent_steps_per_second(self) -> float:
        """What the runner reaches."""
        return 1e6 / self.runner_us

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return {**asdict(self), "agent_steps_per_second": self.agent_steps_per_second}


def measure_efficiency(config: EnvRunnerConfig, *, rounds: int = 5, seconds: float = 1.0) -> Efficiency:
    """Measure a runner of `config` against its limit, in turn, in this process, with one torch thread.

    Args:
        config: what to run; an unseeded one gets seed 0.
        rounds: in each, the environments, the modules and the runner are timed once.
        seconds: about how long each of these takes at most; but 128 steps of every environment are made.

    Raises:
        EnvCheckError: after the same `reset(seed)` and the same actions other agents act, so ready-made actions can't
            be given to this environment.
    """
    config = replace(config, seed=0 if config.seed is None else config.seed)
    with _one_torch_thread():
        runner = MultiAgentEnvRunner(config)
        of_workers = {name: getattr(EnvRunnerConfig, name) for name in OF_WORKERS}  # back to their defaults
        in_turn = replace(config, gym_env_vectorize_mode="sync", env_batch_size=None, worker_num_splits=1, **of_workers)
        owner_of_bare_envs = MultiAgentEnvRunner(in_turn)
        try:
            network = BareNetwork(runner)
            most_calls = max(1, min(MAX_CALLS, int(seconds / _seconds_of_a_call(runner))))
            loop = bare_envs(owner_of_bare_envs.env.envs, config.seed or 0, seconds, most_calls)
            return _measure(runner, loop, network, rounds)
        finally:
            runner.stop()
            owner_of_bare_envs.stop()


def _measure(runner: MultiAgentEnvRunner, loop: BareEnvs | BareBatch, network: BareNetwork, rounds: int) -> Efficiency:
    measured = [
        (
            loop.run(),
            network.run(loop.calls, network.sample_as_torch_does),
            network.run(loop.calls, network.sample_as_we_do),
            _run(runner, loop.calls),
        )
        for _ in range(rounds)
    ]
    ratios = tuple((env + net) / total for env, net, _, total in measured)
    medians = [statistics.median(column) for column in zip(*measured, strict=True)]
    env_us, network_us, own_network_us, runner_us = medians
    env, net, _, total = measured[ratios.index(statistics.median_low(ratios))]
    return Efficiency(
        envs=runner.num_envs,
        agents=loop.agent_steps / loop.env_steps,
        env_us=env_us,
        network_us=network_us,
        limit_us=statistics.median(row[0] + row[1] for row in measured),
        runner_us=runner_us,
        efficiency=statistics.median(ratios),
        rounds=ratios,
        median_round_us=(env + net, total),
        own_network_us=own_network_us,
        own_efficiency=statistics.median((row[0] + row[2]) / row[3] for row in measured),
    )


def _seconds_of_a_call(runner: MultiAgentEnvRunner) -> float:
    begun = perf_counter()
    runner.sample(num_timesteps=TICKS_PER_CALL * runner.num_envs, explore=True)
    return perf_counter() - begun


def _run(runner: MultiAgentEnvRunner, calls: int) -> float:
    """Microseconds per agent step of `calls` calls of sample(), beginning with a reset as the bare loop does."""
    runner.get_metrics()
    begun = perf_counter()
    for i in range(calls):
        runner.sample(num_timesteps=TICKS_PER_CALL * runner.num_envs, explore=True, force_reset=i == 0)
    seconds = perf_counter() - begun
    return 1e6 * seconds / sum(runner.get_metrics()["num_agent_steps_sampled"].values())


class BareNetwork:
    """The modules of a runner on batches such as it makes, without the runner.

    One call of `sample()` is watched: each batch is one step of `run`, on a copy of the first batch of its size.
    """

    def __init__(self, runner: MultiAgentEnvRunner):
        assert runner.module is not None
        self._module = runner.module
        self._sampling = {}
        for module_id, module in self._module.items():
            device = next(module.parameters(), torch.empty(0)).device
            generator = torch.Generator(device).manual_seed(0)
            self._sampling[module_id] = (module, module.get_exploration_action_dist_cls(), generator)
        self._batches: dict[tuple[str, int], dict] = {}
        self._steps: list[tuple[str, int]] = []
        with self._watched():
            runner.sample(num_timesteps=TICKS_PER_CALL * runner.num_envs, explore=True, force_reset=True)

    def sample_as_torch_does(self, dist: type, logits: torch.Tensor, generator: torch.Generator) -> None:
        """What most training loops have; where torch has no such distribution, ours."""
        if dist is Categorical:
            chosen: torch.distributions.Distribution = torch.distributions.Categorical(logits=logits)
        elif dist is DiagGaussian:
            mean, log_std = logits.chunk(2, -1)
            chosen = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
        else:
            self.sample_as_we_do(dist, logits, generator)
            return
        chosen.log_prob(chosen.sample())

    def sample_as_we_do(self, dist: Any, logits: torch.Tensor, generator: torch.Generator) -> None:
        """The fused classmethod of our distributions."""
        dist.sample_and_logp(logits, generator)

    def run(self, passes: int, sample: Callable[..., None]) -> float:
        """Microseconds per agent step of `passes` times as many steps as one call of sample() makes."""
        steps = [(*self._sampling[module_id], self._batches[module_id, n]) for module_id, n in self._steps]
        synchronize = torch.cuda.synchronize if torch.cuda.is_initialized() else _nothing
        with torch.inference_mode(), evaluation_mode(self._module):
            begun = perf_counter()
            for _ in range(passes):
                for module, dist, generator, batch in steps:
                    outputs = module.forward_exploration(batch, t=0)
                    if Columns.ACTIONS not in outputs:
                        sample(dist, outputs[Columns.ACTION_DIST_INPUTS], generator)
                    synchronize()
            seconds = perf_counter() - begun
        return 1e6 * seconds / (passes * sum(n for _, n in self._steps))

    @contextmanager
    def _watched(self) -> Iterator[None]:
        for module_id, (module, _, _) in self._sampling.items():
            watched = partial(self._note, module_id, module.forward_exploration)
            module.forward_exploration = watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            for module, _, _ in self._sampling.values():
                del module.forward_exploration

    def _note(self, module_id: str, forward: Callable[..., dict], batch: dict, **kwargs: Any) -> dict:
        n = len(flatten_struct(batch[Columns.OBS])[0][1])
        self._steps.append((module_id, n))
        if (module_id, n) not in self._batches:
            self._batches[module_id, n] = map_struct(torch.clone, batch)
        return forward(batch, **kwargs)


def _nothing() -> None:
    pass


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """Dropout and the like are off while sampling; the module is left in the mode it was in."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True

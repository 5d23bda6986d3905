"""Measure a case: RLlib's runner, ours, and the bare environments and layers, in turn."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner

from benchmarks.rllib.cases import CASES, SEED
from benchmarks.rllib.pair import Pair, Timing, measuring
from fastmarl.bench.bare_envs import BareEnvs
from fastmarl.bench.bare_network import watched_calls
from fastmarl.rllib.runner import MultiAgentEnvRunner

CHECKED_STEPS = 1000  # env steps in each of two calls whose results are compared first
WATCHED_STEPS = 300  # env steps whose batches are recorded for the bare modules
BARE_SECONDS = 0.2  # approximate time of the bare environments in each round


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """Medians over the rounds, of calls of sample() without the get_metrics() that follows each."""

    case: str
    agents: int
    envs: int
    steps: int
    """Env steps per call."""
    rounds: int
    rllib_rounds: int
    rllib_env_steps_per_second: float
    rllib_agent_steps_per_second: float
    env_steps_per_second: float
    agent_steps_per_second: float
    ratio: float
    """RLlib's time / our time."""
    ratio_with_parts: float
    """The ratio with the time that ours takes to build agent episodes at the first access. RLlib's are already built,
    and an actor that sends its episodes away never builds them."""
    ratio_with_metrics: float
    """RLlib's time / our time, with the time of get_metrics() on both sides."""
    env_us: float
    """Microseconds per agent step of the bare environments."""
    network_us: float
    """Microseconds per agent step of the modules' layers and of sampling that is bit-identical to RLlib's."""
    plain_network_us: float
    """Microseconds per agent step of the modules' layers and of sampling with the fewest torch operations."""
    relative_speed: float
    """(env_us + network_us) / our time."""
    plain_relative_speed: float
    """(env_us + plain_network_us) / our time."""
    ratios: tuple[float, ...]
    """The ratio of each round."""
    slow_path_reasons: tuple[str, ...]
    """Reasons why our runner used RLlib's loop; empty if it did not."""


class BareModules:
    """The modules' layers on RLlib's batches, without runner and modules; see `watched_calls`.

    Args:
        runner: RLlib's, with PPO's default modules and discrete actions.
        steps: Env steps in the call that is recorded.
    """

    def __init__(self, runner: RLlibEnvRunner, steps: int):
        assert runner.module is not None
        modules: dict[str, Any] = dict(runner.module.items())
        calls, self._rows = watched_calls(modules, partial(runner.sample, num_timesteps=steps))
        runner.get_metrics()
        layers = {
            module_id: torch.nn.Sequential(*module.encoder.actor_encoder.net.mlp, *module.pi.net.mlp)
            for module_id, module in modules.items()
        }
        self._steps = [(layers[module_id], batch["obs"]) for module_id, batch in calls]

    def run(self, sample: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> float:
        """Return microseconds per agent step of one pass; `sample` makes actions and their logp from logits."""
        with torch.inference_mode():
            begun = perf_counter()
            for layers, observations in self._steps:
                for tensor in sample(layers(observations)):
                    tensor.numpy()
            seconds = perf_counter() - begun
        return 1e6 * seconds / self._rows


def sample_as_rllib(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample bit-identically to TorchCategorical, without the rest of its operations."""
    logp = logits - logits.logsumexp(-1, keepdim=True)
    actions = torch.multinomial(torch.softmax(logp, -1), 1, True)
    return actions, logp.gather(-1, actions)


def sample_plainly(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample from this distribution with the fewest torch operations."""
    logp = torch.log_softmax(logits, -1)
    actions = torch.multinomial(logp.exp(), 1, True)
    return actions, logp.gather(-1, actions)


def as_rllib_gives(action: Any) -> Any:
    """Convert an action as RLlib's connectors do, which make int32 of a module's int64."""
    return np.int32(action) if isinstance(action, int) else action


def measure_case(name: str, *, rounds: int = 5, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner) -> CaseResult:
    """Check that the runners are equal, then time RLlib's, ours, the bare environments and layers in turn.

    Args:
        name: Key of CASES.
        rounds: Number of rounds; each times everything once.
        ours: The class to compare with RLlib's.

    Returns:
        Medians over the rounds.

    Raises:
        UnequalEpisodesError: If the runners are not equal.
    """
    case = CASES[name]
    rllib_rounds = min(rounds, case.rllib_rounds or rounds)
    bare: list[tuple[float, float, float]] = []  # times of envs, modules, modules that sample plainly
    their_times: list[Timing] = []
    our_times: list[Timing] = []
    with measuring(), Pair(case, ours) as pair, Pair(case, ours) as owner:
        pair.check(min(case.steps, CHECKED_STEPS))
        modules = BareModules(owner.theirs, min(case.steps, WATCHED_STEPS))
        assert owner.ours.env is not None and owner.ours.env.envs is not None
        envs = [env.unwrapped for env in owner.ours.env.envs]  # without Gymnasium's wrappers
        loop = BareEnvs(envs, seed=SEED, seconds=BARE_SECONDS, given=as_rllib_gives)
        for i in range(rounds):
            bare.append((loop.run(), modules.run(sample_as_rllib), modules.run(sample_plainly)))
            turns = [(pair.ours, our_times), (pair.theirs, their_times)]
            turns = turns if i < rllib_rounds else turns[:1]
            for runner, timings in turns if i % 2 else reversed(turns):  # alternates the order
                timings.append(pair.time(runner, seed=i))
        reasons = tuple(getattr(pair.ours, "slow_path_reasons", ()))
    return _case_result(name, bare, their_times, our_times, reasons)


def _case_result(
    name: str,
    bare: list[tuple[float, float, float]],
    theirs: list[Timing],
    ours: list[Timing],
    slow_path_reasons: tuple[str, ...],
) -> CaseResult:
    case = CASES[name]
    both = [*zip(theirs, ours, strict=False)]
    ratios = tuple(their.us / our.us for their, our in both)
    env_us, network_us, plain_network_us = (median(column) for column in zip(*bare, strict=True))
    return CaseResult(
        case=name,
        agents=case.agents,
        envs=case.envs,
        steps=case.steps,
        rounds=len(ours),
        rllib_rounds=len(theirs),
        rllib_env_steps_per_second=median(timing.env_steps / timing.sample for timing in theirs),
        rllib_agent_steps_per_second=median(timing.agent_steps / timing.sample for timing in theirs),
        env_steps_per_second=median(timing.env_steps / timing.sample for timing in ours),
        agent_steps_per_second=median(timing.agent_steps / timing.sample for timing in ours),
        ratio=median(ratios),
        ratio_with_parts=median((their.sample + their.look) / (our.sample + our.look) for their, our in both),
        ratio_with_metrics=median((their.sample + their.metrics) / (our.sample + our.metrics) for their, our in both),
        env_us=env_us,
        network_us=network_us,
        plain_network_us=plain_network_us,
        relative_speed=median((env + net) / our.us for (env, net, _), our in zip(bare, ours, strict=True)),
        plain_relative_speed=median((env + net) / our.us for (env, _, net), our in zip(bare, ours, strict=True)),
        ratios=ratios,
        slow_path_reasons=slow_path_reasons,
    )

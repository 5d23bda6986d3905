"""Further measurements: growth with the steps per call, the cost of the way to a learner, PPO iterations."""

import pickle
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import ray
from ray import cloudpickle
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner

from benchmarks.rllib.cases import SEED, Case, ReadyEnv, cartpole
from benchmarks.rllib.pair import Pair, look, measuring, seed_everything
from fastmarl.report.records import Row
from fastmarl.rllib.runner import MultiAgentEnvRunner

GROWTH_CASE = cartpole(agents=8, envs=8)
GROWTH_STEPS = (500, 1000, 2000, 4000, 8000, 16_000, 32_000)  # env steps per call
RLLIB_GROWTH_STEPS = 8000  # the limit for RLlib's runner, which is timed once
CALLED_STEPS = 4000  # shorter calls are repeated until all rows have as many steps
TRANSFER_CASE = Case(env=ReadyEnv, agents=8, envs=8, steps=8 * 250)
PPO_CASE = cartpole(agents=8, envs=8, steps=2000)

local_ray = partial(ray.init, num_cpus=1, include_dashboard=False, log_to_driver=False)
"""Starts Ray in processes of its own for the duration of a `with` statement."""


def measure_growth(
    *,
    steps: tuple[int, ...] = GROWTH_STEPS,
    rllib_steps: int = RLLIB_GROWTH_STEPS,
    rounds: int = 3,
    ours: type[RLlibEnvRunner] = MultiAgentEnvRunner,
) -> list[Row]:
    """Measure the time per agent step, with get_metrics() between the calls.

    Args:
        steps: Env steps per call.
        rllib_steps: The limit for RLlib's runner.
        rounds: Rounds of our runner, for the median; RLlib's has one.
        ours: The class to compare with RLlib's.

    Returns:
        One row for each of `steps`: "steps", and microseconds of sample() per agent step, "us" and "rllib_us" (or
            None).
    """
    with measuring(), Pair(GROWTH_CASE, ours) as pair:
        pair.check(steps[0])
        # Each round covers all sizes, so that a machine that slows down does not look like growth.
        us = [[_mean_us(pair, pair.ours, n) for n in steps] for _ in range(rounds)]
        rllib_us = [_mean_us(pair, pair.theirs, n) if n <= rllib_steps else None for n in steps]
    medians = map(median, zip(*us, strict=True))
    return [{"steps": n, "rllib_us": their, "us": our} for n, their, our in zip(steps, rllib_us, medians, strict=True)]


def _mean_us(pair: Pair, runner: RLlibEnvRunner, steps: int) -> float:
    timings = [pair.time(runner, seed=i, steps=steps) for i in range(max(1, CALLED_STEPS // steps))]
    return 1e6 * sum(timing.sample for timing in timings) / sum(timing.agent_steps for timing in timings)


def measure_transfer(
    *, rounds: int = 5, steps: int = TRANSFER_CASE.steps, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner
) -> list[Row]:
    """Pickle and rebuild the result of one call of sample(), with protocol 5 and out-of-band buffers, as Ray does.

    Args:
        rounds: Number of rounds for the medians; the runners take turns.
        steps: Env steps in that call.
        ours: The class to compare with RLlib's.

    Returns:
        One row for each "runner": "dumps_ms", "loads_ms", "look_ms" (the first access to all received agent episodes),
        "megabytes" and the number of "buffers".
    """
    with measuring(), Pair(TRANSFER_CASE, ours) as pair:
        samples = {"RLlib": pair.theirs.sample(num_timesteps=steps), "fastmarl": pair.ours.sample(num_timesteps=steps)}
        return _in_turn({name: partial(_through_pickle, episodes) for name, episodes in samples.items()}, rounds)


def _through_pickle(episodes: list) -> dict[str, float]:
    buffers: list[pickle.PickleBuffer] = []
    begun = perf_counter()
    data = cloudpickle.dumps(episodes, protocol=5, buffer_callback=buffers.append)
    dumped = perf_counter()
    arrived = pickle.loads(data, buffers=buffers)
    loaded = perf_counter()
    look(arrived)
    looked = perf_counter()
    return {
        "dumps_ms": 1e3 * (dumped - begun),
        "loads_ms": 1e3 * (loaded - dumped),
        "look_ms": 1e3 * (looked - loaded),
        "megabytes": (len(data) + sum(buffer.raw().nbytes for buffer in buffers)) / 1e6,
        "buffers": len(buffers),
    }


def _in_turn(turns: Mapping[str, Callable[[], dict[str, float]]], rounds: int) -> list[Row]:
    """Return the medians of each runner's figures, without a first turn."""
    by_runner: dict[str, list[dict[str, float]]] = {runner: [] for runner in turns}
    for _ in range(1 + rounds):
        for runner, turn in turns.items():
            by_runner[runner].append(turn())
    return [
        {"runner": runner, **{key: median(figures[key] for figures in counted) for key in counted[0]}}
        for runner, (_, *counted) in by_runner.items()
    ]


class Sender:
    """An actor that has sampled and returns its episodes on request."""

    def __init__(self, runner_class: type[RLlibEnvRunner]):
        seed_everything(SEED)
        runner = runner_class(config=TRANSFER_CASE.config())
        self._episodes = runner.sample(num_timesteps=TRANSFER_CASE.steps)

    def episodes(self) -> list:
        return self._episodes


def measure_trip(*, rounds: int = 20, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner) -> list[Row]:
    """Measure the way of one call's episodes from an actor to the driver. Ray must be started.

    Args:
        rounds: Number of rounds for the medians; the runners take turns.
        ours: The class to compare with RLlib's.

    Returns:
        One row for each "runner": "get_ms", from requesting finished episodes until ray.get() returns, and "look_ms",
        the first access to all agent episodes.
    """
    senders = {name: ray.remote(num_cpus=0)(Sender).remote(kind) for name, kind in _classes(ours).items()}
    rows = _in_turn({name: partial(_fetch, sender) for name, sender in senders.items()}, rounds)
    for sender in senders.values():
        ray.kill(sender)
    return rows


def _classes(ours: type[RLlibEnvRunner]) -> dict[str, type[RLlibEnvRunner]]:
    return {"RLlib": RLlibEnvRunner, "fastmarl": ours}


def _fetch(sender: Any) -> dict[str, float]:
    begun = perf_counter()
    episodes = ray.get(sender.episodes.remote())
    arrived = perf_counter()
    look(episodes)
    return {"get_ms": 1e3 * (arrived - begun), "look_ms": 1e3 * (perf_counter() - arrived)}


def measure_ppo(*, iterations: int = 3, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner) -> list[Row]:
    """Measure PPO iterations with default settings, except for the batch of PPO_CASE's steps. Ray must be started.

    Args:
        iterations: Number of iterations for the medians; the runners take turns.
        ours: The class to compare with RLlib's.

    Returns:
        One row for each "runner": "seconds" of Algorithm.train(), which samples and learns in this process,
        "sampling_seconds" of these, and the ratio of both, "sampling_share".
    """
    with measuring(), ExitStack() as stack:
        turns = {name: partial(_iteration, _algorithm(kind, stack)) for name, kind in _classes(ours).items()}
        return _in_turn(turns, iterations)


def _algorithm(runner_class: type[RLlibEnvRunner], stack: ExitStack) -> Algorithm:
    config = PPO_CASE.config(env_runner_cls=runner_class)
    algorithm = config.training(train_batch_size_per_learner=PPO_CASE.steps).build_algo()
    stack.callback(algorithm.stop)
    return algorithm


def _iteration(algorithm: Algorithm) -> dict[str, float]:
    runner, sampling = algorithm.env_runner, 0.0
    sample = runner.sample

    def watched(**kwargs: Any) -> list:
        nonlocal sampling
        begun = perf_counter()
        episodes = sample(**kwargs)
        sampling += perf_counter() - begun
        return episodes

    runner.sample = watched
    begun = perf_counter()
    algorithm.train()
    seconds = perf_counter() - begun
    del runner.sample
    return {"seconds": seconds, "sampling_seconds": sampling, "sampling_share": sampling / seconds}

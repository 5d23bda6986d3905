"""Beside the cases: how the time grows with the steps in a call, what the way to a learner costs, a PPO iteration."""

import pickle
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import ray
from ray import cloudpickle
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner

from fastmarl.bench.rllib.cases import SEED, Case, ReadyEnv, cartpole
from fastmarl.bench.rllib.measure import Pair, look, measuring, seed_everything
from fastmarl.rllib.runner import MultiAgentEnvRunner

GROWTH_CASE = cartpole(agents=8, envs=8)
GROWTH_STEPS = (500, 1000, 2000, 4000, 8000, 16_000, 32_000)  # env steps a call
RLLIB_GROWTH_STEPS = 8000  # RLlib's runner is timed up to here, and once
CALLED_STEPS = 4000  # in calls of fewer steps each, so many of these are made that all rows rest on as much
TRANSFER_CASE = Case(env=ReadyEnv, agents=8, envs=8, steps=8 * 250)
PPO_CASE = cartpole(agents=8, envs=8, steps=2000)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Microseconds of sample() per agent step at so many env steps in a call."""

    steps: int
    rllib_us: float | None
    """None: not measured."""
    us: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The trip of one sample through the object store: pickle protocol 5, with buffers out of band."""

    runner: str
    dumps_ms: float
    loads_ms: float
    look_ms: float
    """A first look at all agents' parts where they have arrived."""
    megabytes: float
    """In the pickle and in its buffers."""
    buffers: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Trip:
    """One sample's whole way from an actor to the driver, through Ray."""

    runner: str
    get_ms: float
    """Asking the actor for episodes that are ready, until ray.get() has returned them."""
    look_ms: float
    """A first look at all agents' parts."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One call of Algorithm.train(): sampling in the local runner, learning in the local learner."""

    runner: str
    seconds: float
    sampling_seconds: float

    @property
    def sampling_share(self) -> float:
        return self.sampling_seconds / self.seconds

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sampling_share": self.sampling_share}


def measure_growth(
    *,
    steps: tuple[int, ...] = GROWTH_STEPS,
    rllib_steps: int = RLLIB_GROWTH_STEPS,
    rounds: int = 3,
    ours: type[RLlibEnvRunner] = MultiAgentEnvRunner,
) -> list[Growth]:
    """Time per agent step, with get_metrics() between the calls.

    Args:
        steps: env steps in a call.
        rllib_steps: RLlib's runner takes part up to here.
        rounds: of our runner, for the median; RLlib's has one.
        ours: the class to compare with RLlib's.
    """
    with measuring(), Pair(GROWTH_CASE, ours) as pair:
        pair.check(steps[0])
        # Round by round over all sizes, so that a machine that gets slower does not look like growth.
        us = [[_mean_us(pair, pair.ours, n) for n in steps] for _ in range(rounds)]
        rllib_us = [_mean_us(pair, pair.theirs, n) if n <= rllib_steps else None for n in steps]
    medians = map(statistics.median, zip(*us, strict=True))
    return [Growth(steps=n, rllib_us=their, us=our) for n, their, our in zip(steps, rllib_us, medians, strict=True)]


def _mean_us(pair: Pair, runner: RLlibEnvRunner, steps: int) -> float:
    timings = [pair.time(runner, seed=i, steps=steps) for i in range(max(1, CALLED_STEPS // steps))]
    return 1e6 * sum(timing.sample for timing in timings) / sum(timing.agent_steps for timing in timings)


def measure_transfer(
    *, rounds: int = 5, steps: int = TRANSFER_CASE.steps, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner
) -> list[Transfer]:
    """Pickle and rebuild what one call of sample() returns; medians of the rounds, the runners in turn.

    Args:
        rounds: for the medians.
        steps: env steps in that call.
        ours: the class to compare with RLlib's.
    """
    with measuring(), Pair(TRANSFER_CASE, ours) as pair:
        samples = {"RLlib": pair.theirs.sample(num_timesteps=steps), "fastmarl": pair.ours.sample(num_timesteps=steps)}
        trips: dict[str, list[tuple[float, float, float, int, int]]] = {name: [] for name in samples}
        for _ in range(1 + rounds):
            for name, episodes in samples.items():
                trips[name].append(_trip(episodes))
    # The first one warms up.
    return [
        _transfer(name, *map(statistics.median, zip(*of_runner[1:], strict=True))) for name, of_runner in trips.items()
    ]


def _trip(episodes: list) -> tuple[float, float, float, int, int]:
    """(seconds of dumps, of loads, of a first look, bytes, buffers)."""
    buffers: list[pickle.PickleBuffer] = []
    begun = perf_counter()
    data = cloudpickle.dumps(episodes, protocol=5, buffer_callback=buffers.append)
    dumped = perf_counter()
    arrived = pickle.loads(data, buffers=buffers)
    loaded = perf_counter()
    look(arrived)
    looked = perf_counter()
    n_bytes = len(data) + sum(buffer.raw().nbytes for buffer in buffers)
    return dumped - begun, loaded - dumped, looked - loaded, n_bytes, len(buffers)


def _transfer(runner: str, dumps: float, loads: float, look: float, n_bytes: float, buffers: float) -> Transfer:
    return Transfer(
        runner=runner,
        dumps_ms=1e3 * dumps,
        loads_ms=1e3 * loads,
        look_ms=1e3 * look,
        megabytes=n_bytes / 1e6,
        buffers=int(buffers),
    )


class Sender:
    """An actor that has sampled, and gives its episodes away as often as it is asked."""

    def __init__(self, runner_class: type[RLlibEnvRunner]):
        seed_everything(SEED)
        runner = runner_class(config=TRANSFER_CASE.config())
        self._episodes = runner.sample(num_timesteps=TRANSFER_CASE.steps)

    def episodes(self) -> list:
        return self._episodes


def measure_trip(*, rounds: int = 20, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner) -> list[Trip]:
    """The whole trip of what one call of sample() returns; medians, the runners in turn. Needs a started Ray.

    Args:
        rounds: for the medians, after one that is not counted.
        ours: the class to compare with RLlib's.
    """
    classes: dict[str, type[RLlibEnvRunner]] = {"RLlib": RLlibEnvRunner, "fastmarl": ours}
    senders = {name: ray.remote(num_cpus=0)(Sender).remote(kind) for name, kind in classes.items()}
    trips: dict[str, list[tuple[float, float]]] = {name: [] for name in classes}
    for _ in range(1 + rounds):
        for name, sender in senders.items():
            begun = perf_counter()
            episodes = ray.get(sender.episodes.remote())
            arrived = perf_counter()
            look(episodes)
            trips[name].append((arrived - begun, perf_counter() - arrived))
    for sender in senders.values():
        ray.kill(sender)
    medians = {
        name: [statistics.median(column) for column in zip(*times[1:], strict=True)] for name, times in trips.items()
    }
    return [Trip(runner=name, get_ms=1e3 * get, look_ms=1e3 * look) for name, (get, look) in medians.items()]


def measure_ppo(*, iterations: int = 3, ours: type[RLlibEnvRunner] = MultiAgentEnvRunner) -> list[Iteration]:
    """PPO's iteration with its default settings but for the batch, which is PPO_CASE's steps. Needs a started Ray.

    Args:
        iterations: for the medians, the runners in turn, after one that is not counted.
        ours: the class to compare with RLlib's.
    """
    classes: dict[str, type[RLlibEnvRunner]] = {"RLlib": RLlibEnvRunner, "fastmarl": ours}
    with measuring(), ExitStack() as stack:
        algorithms = {name: _algorithm(runner_class, stack) for name, runner_class in classes.items()}
        sampling = {name: _watch_sample(algorithm.env_runner) for name, algorithm in algorithms.items()}
        totals: dict[str, list[float]] = {name: [] for name in algorithms}
        for _ in range(1 + iterations):
            for name, algorithm in algorithms.items():
                begun = perf_counter()
                algorithm.train()
                totals[name].append(perf_counter() - begun)
    return [
        Iteration(
            runner=name,
            seconds=statistics.median(totals[name][1:]),
            sampling_seconds=statistics.median(sampling[name][1:]),
        )
        for name in classes
    ]


@contextmanager
def local_ray() -> Iterator[None]:
    """Ray in processes of its own, for as long as the `with` statement lasts."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _algorithm(runner_class: type[RLlibEnvRunner], stack: ExitStack) -> Algorithm:
    config = PPO_CASE.config(env_runner_cls=runner_class)
    algorithm = config.training(train_batch_size_per_learner=PPO_CASE.steps).build_algo()
    stack.callback(algorithm.stop)
    return algorithm


def _watch_sample(runner: RLlibEnvRunner) -> list[float]:
    """From now on, the seconds of each call of this runner's sample()."""
    seconds: list[float] = []
    sample = runner.sample

    def watched(**kwargs: Any) -> list:
        begun = perf_counter()
        episodes = sample(**kwargs)
        seconds.append(perf_counter() - begun)
        return episodes

    runner.sample = watched  # type: ignore[method-assign]
    return seconds

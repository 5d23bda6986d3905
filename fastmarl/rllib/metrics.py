"""Logs the metrics of the RLlib runner once per call instead of per step, with the same keys, classes and values.

Except for times, results of `logger.reduce()` and their aggregates in an Algorithm match RLlib, with two intended
differences: counters without new values are 0 instead of NaN, and connector times at resets are not logged at the top
of the tree, where RLlib puts them only because of a misspelt argument. Keys are in the order of a typical run.
"""

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from ray.rllib.env.env_runner import NUM_ENV_STEP_FAILURES_LIFETIME
from ray.rllib.utils import metrics as keys
from ray.rllib.utils.metrics.stats import EmaStats, LifetimeSumStats, MaxStats, MeanStats, MinStats, SumStats
from ray.rllib.utils.metrics.utils import to_snake_case

from fastmarl.core.kernels.accumulate import exponential_mean
from fastmarl.rllib.sampling.internals import Internals
from fastmarl.rllib.store.records import CallCounts, EpisodeNumbers

Path = tuple[str, ...]
LOST_REWARD = "unattributed_reward"
COUNTERS = (
    keys.NUM_ENV_STEPS_SAMPLED,
    keys.NUM_EPISODES,
    keys.NUM_AGENT_STEPS_SAMPLED,
    keys.NUM_MODULE_STEPS_SAMPLED,
    LOST_REWARD,
)
_timer_name = functools.cache(to_snake_case)  # from the class name of a connector piece


class RLlibMetrics:
    """Logs the counts and episodes of a runner in bulk.

    Args:
        internals: An RLlib runner with connectors, a logger and a config.
        names: Agent id -> name in metrics, for agents not named `str(id)`.
    """

    def __init__(self, internals: Internals, names: dict[Hashable, str] | None = None):
        self._internals, self._runner = internals, internals.runner
        self._names = names or {}

    def name_of(self, agent_id: Hashable) -> str:
        """Return the metrics key of an agent."""
        return self._names.get(agent_id) or str(agent_id)

    # Calls of sample().

    def log_call(self, counts: CallCounts) -> None:
        """Log the counts of a call, even of a failed one, because RLlib logs each step as it happens.

        The runner's `_try_env_reset()` logs `env_reset_timer`.
        """
        self._log_lengths(counts)
        seconds, internals = counts.seconds, self._internals
        if counts.forwards:
            self._log_time((keys.RLMODULE_INFERENCE_TIMER,), seconds["forward"], counts.forwards)
            self._log_connectors(keys.MODULE_TO_ENV_CONNECTOR, internals.module_to_env, seconds["act"], counts.forwards)
        if counts.ticks:
            self._log_time((keys.ENV_STEP_TIMER,), seconds["env_step"], counts.ticks)
            internals.log_env_steps(metric=internals.metrics_num_try_env_step, num_steps=counts.ticks)
        self._log_counters(counts)
        if counts.ticks:
            self._log_connectors(
                keys.ENV_TO_MODULE_CONNECTOR, internals.env_to_module, seconds["connect"], counts.ticks
            )
        if counts.lost_reward:
            self._stats((LOST_REWARD,), reduce="sum").push(counts.lost_reward)
        if counts.episodes:
            add_ones(self._stats((keys.NUM_EPISODES,), reduce="sum"), counts.episodes)
            add_ones(self._stats((keys.NUM_EPISODES_LIFETIME,), reduce="lifetime_sum"), counts.episodes)

    def log_step(self, observed: Iterable[Hashable], episode: Any) -> None:
        """Log an env step of the RLlib loop, like `_increase_sampled_metrics()`, but with fewer calls."""
        add_ones(self._stats((keys.NUM_ENV_STEPS_SAMPLED,), reduce="sum"), 1)
        add_ones(self._stats((keys.NUM_ENV_STEPS_SAMPLED_LIFETIME,), reduce="lifetime_sum", with_throughput=True), 1)
        if episode.is_done:
            add_ones(self._stats((keys.NUM_EPISODES,), reduce="sum"), 1)
            add_ones(self._stats((keys.NUM_EPISODES_LIFETIME,), reduce="lifetime_sum"), 1)
        for agent_id in observed:
            name, module_id = str(agent_id), episode.module_for(agent_id)
            add_ones(self._stats((keys.NUM_AGENT_STEPS_SAMPLED, name), reduce="sum"), 1)
            add_ones(self._stats((keys.NUM_AGENT_STEPS_SAMPLED_LIFETIME, name), reduce="lifetime_sum"), 1)
            add_ones(self._stats((keys.NUM_MODULE_STEPS_SAMPLED, module_id), reduce="sum"), 1)
            add_ones(self._stats((keys.NUM_MODULE_STEPS_SAMPLED_LIFETIME, module_id), reduce="lifetime_sum"), 1)

    def _log_lengths(self, counts: CallCounts) -> None:
        """Log one value per pass of the env-to-module connectors, 0 after a reset."""
        lengths = [0] * counts.resets + counts.lengths
        if lengths:
            for name in (keys.ENV_TO_MODULE_SUM_EPISODES_LENGTH_IN, keys.ENV_TO_MODULE_SUM_EPISODES_LENGTH_OUT):
                push_all(self._stats((name,)), lengths)

    def _log_counters(self, counts: CallCounts) -> None:
        internals = self._internals
        if counts.step_failures:
            add_ones(self._stats((NUM_ENV_STEP_FAILURES_LIFETIME,), reduce="lifetime_sum"), counts.step_failures)
        if counts.env_steps:
            internals.log_env_steps(metric=internals.metrics_num_env_steps_sampled, num_steps=counts.env_steps)
            add_ones(self._stats((keys.NUM_ENV_STEPS_SAMPLED,), reduce="sum"), counts.env_steps)
            lifetime = self._stats((keys.NUM_ENV_STEPS_SAMPLED_LIFETIME,), reduce="lifetime_sum", with_throughput=True)
            add_ones(lifetime, counts.env_steps)
        self._log_observations(keys.NUM_AGENT_STEPS_SAMPLED, "sum", counts.agent_observations)
        self._log_observations(keys.NUM_AGENT_STEPS_SAMPLED_LIFETIME, "lifetime_sum", counts.agent_observations)
        self._log_observations(keys.NUM_MODULE_STEPS_SAMPLED, "sum", counts.module_observations)
        self._log_observations(keys.NUM_MODULE_STEPS_SAMPLED_LIFETIME, "lifetime_sum", counts.module_observations)

    def _log_observations(self, name: str, reduce: str, counts: dict[Any, int]) -> None:
        """Add counts to `name/<id>` without walking the metrics tree for each of possibly hundreds of ids."""
        branch = self._runner.metrics.stats.get(name, {})
        for id_, n in counts.items():
            key = self.name_of(id_)
            stats = branch.get(key)  # falsy if empty, hence the comparison with None
            add_ones(self._stats((name, key), reduce=reduce) if stats is None else stats, n)

    def _log_connectors(self, prefix: str, pipeline: Any, seconds: float, n: int) -> None:
        """Log the time of a stage for the entire pipeline, and 0 for each of its pieces, which did not run."""
        self._log_time((prefix, keys.CONNECTOR_PIPELINE_TIMER), seconds, n)
        for piece in pipeline.connectors:
            self._log_time((prefix, keys.TIMERS, keys.CONNECTOR_TIMERS, _timer_name(type(piece).__name__)), 0.0, n)

    def _log_time(self, path: Path, seconds: float, n: int) -> None:
        """Log `n` measurements that total `seconds`, each as their mean."""
        push_repeated(self._stats(path), seconds / n, n)

    # Episodes.

    def log_episodes(self, episodes: Sequence[EpisodeNumbers]) -> None:
        """Log finished episodes in the order in which they finished. Called by get_metrics()."""
        if not episodes:
            return
        config = self._runner.config
        window = max(1, math.ceil(config.metrics_num_episodes_for_smoothing / (config.num_env_runners or 1)))
        lengths = [episode.length for episode in episodes]
        returns = [episode.episode_return for episode in episodes]
        self._log_by_id(keys.EPISODE_AGENT_RETURN_MEAN, (episode.agent_returns for episode in episodes), window)
        self._log_by_id(keys.EPISODE_AGENT_STEPS, (episode.agent_steps for episode in episodes), window)
        self._log_window(keys.EPISODE_DURATION_SEC_MEAN, "mean", [episode.duration_s for episode in episodes], window)
        self._log_window(keys.EPISODE_LEN_MEAN, "mean", lengths, window)
        self._log_window(keys.EPISODE_RETURN_MEAN, "mean", returns, window)
        self._log_by_id(keys.EPISODE_MODULE_RETURN_MEAN, (episode.module_returns for episode in episodes), window)
        self._log_window(keys.EPISODE_LEN_MIN, "min", lengths, window)
        self._log_window(keys.EPISODE_RETURN_MIN, "min", returns, window)
        self._log_window(keys.EPISODE_LEN_MAX, "max", lengths, window)
        self._log_window(keys.EPISODE_RETURN_MAX, "max", returns, window)

    def _log_by_id(self, name: str, numbers: Iterable[dict[str, Any]], window: int) -> None:
        """Log the values of each id under `name/<id>`."""
        collected: dict[str, list] = {}
        for by_id in numbers:
            for id_ in sorted(by_id):  # the RLlib logger sorts the keys
                collected.setdefault(id_, []).append(by_id[id_])
        for id_, values in collected.items():
            push_all(self._stats((name, id_), reduce="mean", window=window), values)

    def _log_window(self, name: str, reduce: str, values: list, window: int) -> None:
        push_all(self._stats((name,), reduce=reduce, window=window), values)

    # Reports.

    def keep_counters_alive(self) -> None:
        """Push 0 to counters not logged since the last reduce(), which RLlib would report as NaN."""
        for name in COUNTERS:
            branch = self._runner.metrics.stats.get(name, {})
            for stats in branch.values() if isinstance(branch, dict) else [branch]:
                if not len(stats):
                    stats.push(0)

    def _stats(self, path: Path, **options: Any) -> Any:
        """Return the logger stats at `path`; if missing, create a moving average, or the kind set by `options`."""
        logger = self._runner.metrics
        node = logger.stats
        for key in path:
            node = node.get(key)
            if node is None:
                return logger.log_time(path, **options)  # creates the stats without logging a time
        return node


def distinct_names(envs: list[Any]) -> dict[Hashable, str]:
    """Return agent id -> distinct name, for agents whose ids print alike, such as 1 and "1" (46)."""
    agents = dict.fromkeys(agent_id for env in envs for agent_id in env.unwrapped.possible_agents)
    texts = Counter(str(agent_id) for agent_id in agents)
    return {
        agent_id: f"{agent_id} ({type(agent_id).__name__})"
        for agent_id in agents
        if texts[str(agent_id)] > 1 and not isinstance(agent_id, str)
    }


# Batched pushes. Stats classes not from RLlib (see `stats_cls_lookup` in its config) receive values one by one.


def push_all(stats: Any, values: Sequence[Any]) -> None:
    """Push all numbers in `values`; bit-identical to calling `stats.push()` for each, for every class."""
    kind = type(stats)
    if kind is EmaStats and {type(stats._value), *map(type, values)} <= {int, float}:
        _push_to_mean(stats, values)
    elif kind is MeanStats or (kind in (MinStats, MaxStats) and stats._window is not None):
        stats.values.extend(values)
    else:
        for value in values:
            stats.push(value)


def _push_to_mean(stats: EmaStats, values: Sequence[float]) -> None:
    first = 0
    while first < len(values) and stats._value != stats._value:  # RLlib stores the first value unchanged, even an int
        stats.push(values[first])
        first += 1
    numbers = np.array(values[first:], np.float64)
    if not np.isnan(numbers).all():
        stats._value = exponential_mean(float(stats._value), stats._ema_coeff, numbers)


def add_ones(stats: Any, n: int) -> None:
    """Do the same as n > 0 calls of `stats.push(1)`; bit-identical if `stats` has received only integers."""
    if type(stats) is LifetimeSumStats:
        stats._lifetime_sum += n
    elif type(stats) is SumStats and stats._window is None and _are_integers(stats.values):
        # RLlib stores the first value unchanged; sums are int64.
        stats.values = [np.int64(stats.values[0] + n) if stats.values else (1 if n == 1 else np.int64(n))]
    else:
        push_all(stats, [1] * n)


def _are_integers(values: Sequence) -> bool:
    return not values or isinstance(values[0], int | np.int64)


def push_repeated(stats: Any, value: float, n: int) -> None:
    """Do the same as n > 0 calls of `stats.push(value)`, up to rounding."""
    if type(stats) is not EmaStats:
        push_all(stats, [value] * n)
    elif stats._value != stats._value:
        stats._value = value
    else:
        stats._value = value + (1.0 - stats._ema_coeff) ** n * (stats._value - value)


ACCELERATED = "num_accelerated_env_runners"
SLOW_PATH = "num_slow_path_env_runners"  # keyed by reason code
RUNNER_COUNTS = (ACCELERATED, SLOW_PATH)


class RunnerCount(LifetimeSumStats):
    """Number of runners of a kind: 1 or 0 in a runner's logger; in other loggers, the sum over the reporting runners.

    RLlib's sums would add up all reports, although a runner may send several per result, so this class keeps only the
    latest report of each runner since the last result. In checkpoints it looks like the RLlib class, so they can be
    restored without fastmarl. The RLlib class then adds up changes: the `_lifetime_sum` of a report is the difference
    from the previous report.

    Attributes:
        runners: Worker index -> latest count.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.runners: dict[int, int] = {}
        self._reported = 0
        self._is_outdated = False

    def note(self, worker_index: int, count: int) -> None:
        """Set the count of a single runner."""
        self.runners = {worker_index: count}

    def push(self, value: Any) -> None:
        """Do nothing, because `note()` sets the count."""

    def merge(self, incoming_stats: list[Any]) -> None:
        """Merge reports from runners. The first merge after a result discards all earlier reports."""
        if self._is_outdated:
            self.runners, self._is_outdated = {}, False
        for each in incoming_stats:
            self.runners.update(each.runners)
        self.latest_merged = sum(sum(each.runners.values()) for each in incoming_stats)

    def peek(self, compile: bool = True, latest_merged_only: bool = False) -> Any:
        """Return the sum over the runners."""
        total = self.latest_merged or 0 if latest_merged_only else sum(self.runners.values())
        return total if compile else [total]

    def reduce(self, compile: bool = True) -> Any:
        """Return the sum or, unless `compile`, a report of it; the sum is kept until new reports arrive."""
        total = sum(self.runners.values())
        self._is_outdated = not self.is_leaf
        if compile:
            return total
        report = self.clone()
        report.runners, report._lifetime_sum = dict(self.runners), total - self._reported
        self._reported = total
        return report

    def get_state(self) -> dict[str, Any]:
        """Return the state of an RLlib sum without any reports."""
        return {**super().get_state(), "lifetime_sum": 0}


class RunnerCounts:
    """The `RunnerCount` objects in a runner's logger.

    Args:
        worker_index: Index of the runner.
    """

    def __init__(self, worker_index: int):
        self._worker_index = worker_index
        self._accelerated = RunnerCount()
        self._slow_path: dict[str, RunnerCount] = {}

    def log(self, logger: Any, is_accelerated: bool, codes: set[str]) -> None:
        """Write the counts to a runner's logger; codes that no longer apply become 0."""
        for code in codes - self._slow_path.keys():
            self._slow_path[code] = RunnerCount()
        self._accelerated.note(self._worker_index, int(is_accelerated))
        logger.stats[ACCELERATED] = self._accelerated
        for code, count in self._slow_path.items():
            count.note(self._worker_index, int(code in codes))
            logger.stats.setdefault(SLOW_PATH, {})[code] = count

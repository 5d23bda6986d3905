"""What RLlib's runner logs step by step, logged once a call: the same keys, classes and values.

The clock apart, `logger.reduce()` and what an Algorithm aggregates from it can't be told from RLlib's. Two things
differ on purpose: counters of what was not seen are 0 and not NaN, and the connectors' times at resets are not logged
at the top of the tree, where only a misspelt argument puts them. The order of keys is that of a usual run.
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
_timer_name = functools.cache(to_snake_case)  # of a connector piece's class


class RLlibMetrics:
    """Logs a runner's counts and episodes in bulk.

    Args:
        runner: an RLlib runner with connectors; its logger and config are used, too.
        names: of agents that do not go by `str(id)`.
    """

    def __init__(self, runner: Any, names: dict[Hashable, str] | None = None):
        self._runner = runner
        self._names = names or {}

    def name_of(self, agent_id: Hashable) -> str:
        """The key under which an agent's numbers are logged."""
        return self._names.get(agent_id) or str(agent_id)

    # Calls of sample().

    def log_call(self, counts: CallCounts) -> None:
        """Log what a call has counted; also one that ended in an error, as RLlib would have logged the steps so far.

        `env_reset_timer` is not logged here, as the runner's `_try_env_reset()` does that.
        """
        self._log_lengths(counts)
        seconds, runner = counts.seconds, self._runner
        if counts.forwards:
            self._log_time((keys.RLMODULE_INFERENCE_TIMER,), seconds["forward"], counts.forwards)
            self._log_connectors(keys.MODULE_TO_ENV_CONNECTOR, runner._module_to_env, seconds["act"], counts.forwards)
        if counts.ticks:
            self._log_time((keys.ENV_STEP_TIMER,), seconds["env_step"], counts.ticks)
            runner._log_env_steps(metric=runner._metrics_num_try_env_step, num_steps=counts.ticks)
        self._log_counters(counts)
        if counts.ticks:
            self._log_connectors(keys.ENV_TO_MODULE_CONNECTOR, runner._env_to_module, seconds["connect"], counts.ticks)
        if counts.lost_reward:
            self._stats((LOST_REWARD,), reduce="sum").push(counts.lost_reward)
        if counts.episodes:
            add_ones(self._stats((keys.NUM_EPISODES,), reduce="sum"), counts.episodes)
            add_ones(self._stats((keys.NUM_EPISODES_LIFETIME,), reduce="lifetime_sum"), counts.episodes)

    def log_step(self, observed: Iterable[Hashable], episode: Any) -> None:
        """Log one env step of RLlib's own loop, as its `_increase_sampled_metrics()` does: each number as it is found
        in the logger, where RLlib's takes a dozen calls."""
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
        """One value per pass of the env-to-module connectors; the one after a reset sees empty episodes."""
        lengths = [0] * counts.resets + counts.lengths
        if lengths:
            for name in (keys.ENV_TO_MODULE_SUM_EPISODES_LENGTH_IN, keys.ENV_TO_MODULE_SUM_EPISODES_LENGTH_OUT):
                push_all(self._stats((name,)), lengths)

    def _log_counters(self, counts: CallCounts) -> None:
        runner = self._runner
        if counts.step_failures:
            add_ones(self._stats((NUM_ENV_STEP_FAILURES_LIFETIME,), reduce="lifetime_sum"), counts.step_failures)
        if counts.env_steps:
            runner._log_env_steps(metric=runner._metrics_num_env_steps_sampled, num_steps=counts.env_steps)
            add_ones(self._stats((keys.NUM_ENV_STEPS_SAMPLED,), reduce="sum"), counts.env_steps)
            lifetime = self._stats((keys.NUM_ENV_STEPS_SAMPLED_LIFETIME,), reduce="lifetime_sum", with_throughput=True)
            add_ones(lifetime, counts.env_steps)
        self._log_observations(keys.NUM_AGENT_STEPS_SAMPLED, "sum", counts.agent_observations)
        self._log_observations(keys.NUM_AGENT_STEPS_SAMPLED_LIFETIME, "lifetime_sum", counts.agent_observations)
        self._log_observations(keys.NUM_MODULE_STEPS_SAMPLED, "sum", counts.module_observations)
        self._log_observations(keys.NUM_MODULE_STEPS_SAMPLED_LIFETIME, "lifetime_sum", counts.module_observations)

    def _log_observations(self, name: str, reduce: str, counts: dict[Any, int]) -> None:
        """Add to `name/<id>`. There may be hundreds of ids: they are looked up without a walk down the tree each."""
        branch = self._runner.metrics.stats.get(name, {})
        for id_, n in counts.items():
            key = self.name_of(id_)
            stats = branch.get(key)  # false if it is empty, so it has to be asked for None
            add_ones(self._stats((name, key), reduce=reduce) if stats is None else stats, n)

    def _log_connectors(self, prefix: str, pipeline: Any, seconds: float, n: int) -> None:
        """The time of a stage stands for that of its pipeline; the pipeline's pieces have not run and took no time."""
        self._log_time((prefix, keys.CONNECTOR_PIPELINE_TIMER), seconds, n)
        for piece in pipeline.connectors:
            self._log_time((prefix, keys.TIMERS, keys.CONNECTOR_TIMERS, _timer_name(type(piece).__name__)), 0.0, n)

    def _log_time(self, path: Path, seconds: float, n: int) -> None:
        """A total of `n` measurements of which we do not know the single ones."""
        push_repeated(self._stats(path), seconds / n, n)

    # Episodes.

    def log_episodes(self, episodes: Sequence[EpisodeNumbers]) -> None:
        """Log finished episodes, in the order in which they have finished. To be called by get_metrics()."""
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
        """Log each id's numbers under `name/<id>`."""
        collected: dict[str, list] = {}
        for by_id in numbers:
            for id_ in sorted(by_id):  # RLlib's logger sorts, which is the order of the keys
                collected.setdefault(id_, []).append(by_id[id_])
        for id_, values in collected.items():
            push_all(self._stats((name, id_), reduce="mean", window=window), values)

    def _log_window(self, name: str, reduce: str, values: list, window: int) -> None:
        push_all(self._stats((name,), reduce=reduce, window=window), values)

    # Reports.

    def keep_counters_alive(self) -> None:
        """Make counters 0 that have not been logged since the last reduce(), where RLlib's turn to NaN."""
        for name in COUNTERS:
            branch = self._runner.metrics.stats.get(name, {})
            for stats in branch.values() if isinstance(branch, dict) else [branch]:
                if not len(stats):
                    stats.push(0)

    def _stats(self, path: Path, **options: Any) -> Any:
        """What the logger has at `path`, made if missing: an exponential mean, or as `options` say."""
        logger = self._runner.metrics
        node = logger.stats
        for key in path:
            node = node.get(key)
            if node is None:
                return logger.log_time(path, **options)  # makes one and measures nothing
        return node


def distinct_names(envs: list[Any]) -> dict[Hashable, str]:
    """46: names for those possible agents whose ids have the same text as another's, such as 1 and "1"."""
    agents = dict.fromkeys(agent_id for env in envs for agent_id in env.unwrapped.possible_agents)
    texts = Counter(str(agent_id) for agent_id in agents)
    return {
        agent_id: f"{agent_id} ({type(agent_id).__name__})"
        for agent_id in agents
        if texts[str(agent_id)] > 1 and not isinstance(agent_id, str)
    }


# Many pushes at once. What isn't RLlib's own class (see `stats_cls_lookup` in its config) gets them one by one.


def push_all(stats: Any, values: Sequence[Any]) -> None:
    """As `stats.push(value)` for all values, which are numbers: bit-identical, for every class."""
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
    while first < len(values) and stats._value != stats._value:  # RLlib keeps a first value as it is, an int, too
        stats.push(values[first])
        first += 1
    numbers = np.array(values[first:], np.float64)
    if not np.isnan(numbers).all():
        stats._value = exponential_mean(float(stats._value), stats._ema_coeff, numbers)


def add_ones(stats: Any, n: int) -> None:
    """As `n` times `stats.push(1)`, n > 0: bit-identical, for every class that has counted whole numbers so far."""
    if type(stats) is LifetimeSumStats:
        stats._lifetime_sum += n
    elif type(stats) is SumStats and stats._window is None and _is_whole(stats.values):
        # RLlib keeps a first value as it is, and sums to int64.
        stats.values = [np.int64(stats.values[0] + n) if stats.values else (1 if n == 1 else np.int64(n))]
    else:
        push_all(stats, [1] * n)


def _is_whole(values: Sequence) -> bool:
    return not values or isinstance(values[0], int | np.int64)


def push_repeated(stats: Any, value: float, n: int) -> None:
    """As `n` times `stats.push(value)`, n > 0, up to rounding."""
    if type(stats) is not EmaStats:
        push_all(stats, [value] * n)
    elif stats._value != stats._value:
        stats._value = value
    else:
        stats._value = value + (1.0 - stats._ema_coeff) ** n * (stats._value - value)


ACCELERATED = "num_accelerated_env_runners"
SLOW_PATH = "num_slow_path_env_runners"  # by code of a reason
RUNNER_COUNTS = (ACCELERATED, SLOW_PATH)


class RunnerCount(LifetimeSumStats):
    """1 or 0 for a runner; above runners, the sum over those that have reported since the last result.

    RLlib's own sums add up all reports, of which there may be several by one runner for one result. This one knows who
    reports. To a checkpoint it looks like RLlib's class, so that this can be restored without fastmarl. Where one has
    been, RLlib's class adds up what reports change: `_lifetime_sum` of a report is the difference from the one before.

    Attributes:
        runners: worker index -> its newest count.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.runners: dict[int, int] = {}
        self._told = 0
        self._is_outdated = False

    def note(self, worker_index: int, count: int) -> None:
        """Set a runner's own count."""
        self.runners = {worker_index: count}

    def push(self, value: Any) -> None:
        """Nothing: see `note()`."""

    def merge(self, incoming_stats: list[Any]) -> None:
        """Take over what runners report. The first reports after a result take the place of all those before it."""
        if self._is_outdated:
            self.runners, self._is_outdated = {}, False
        for each in incoming_stats:
            self.runners.update(each.runners)
        self.latest_merged = sum(sum(each.runners.values()) for each in incoming_stats)

    def peek(self, compile: bool = True, latest_merged_only: bool = False) -> Any:
        """The sum."""
        total = self.latest_merged or 0 if latest_merged_only else sum(self.runners.values())
        return total if compile else [total]

    def reduce(self, compile: bool = True) -> Any:
        """The sum, or a report of it. It holds until there are newer reports."""
        total = sum(self.runners.values())
        self._is_outdated = not self.is_leaf
        if compile:
            return total
        report = self.clone()
        report.runners, report._lifetime_sum = dict(self.runners), total - self._told
        self._told = total
        return report

    def get_state(self) -> dict[str, Any]:
        """Return the state of RLlib's class, before any report."""
        return {**super().get_state(), "lifetime_sum": 0}


class RunnerCounts:
    """A runner's own counts.

    Args:
        worker_index: of the runner.
    """

    def __init__(self, worker_index: int):
        self._worker_index = worker_index
        self._accelerated = RunnerCount()
        self._slow_path: dict[str, RunnerCount] = {}

    def log(self, logger: Any, is_accelerated: bool, codes: set[str]) -> None:
        """Put the counts into a runner's logger. Codes that were seen before and aren't any more have 0."""
        for code in codes - self._slow_path.keys():
            self._slow_path[code] = RunnerCount()
        self._accelerated.note(self._worker_index, int(is_accelerated))
        logger.stats[ACCELERATED] = self._accelerated
        for code, count in self._slow_path.items():
            count.note(self._worker_index, int(code in codes))
            logger.stats.setdefault(SLOW_PATH, {})[code] = count

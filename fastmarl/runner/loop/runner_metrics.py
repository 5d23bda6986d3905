"""Runner metrics as plain numbers, with the names and meanings used in RLlib.

The store keeps its counts in arrays; names are added here, when `get_metrics()` is called or a callback peeks.
"""

import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np

from fastmarl.core.episodes.log import EpisodeLog
from fastmarl.core.episodes.summaries import CallSummary, EpisodeSummary
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_keys, check_mapping, whole_number
from fastmarl.runner.loop.goals import Goal
from fastmarl.runner.metrics.metrics_logger import MetricsLogger
from fastmarl.runner.metrics.nested import merged
from fastmarl.runner.metrics.stats import NAN

NAMED = 4096  # maximum number of ids counted separately, which limits reports if ids keep changing
OTHERS = "__others__"


@dataclass
class Counts:
    """Calls, steps, episodes and lost rewards since the last report, or over the lifetime of the runner."""

    calls: int = 0
    pauses: int = 0  # intervals between two calls
    ticks: int = 0
    env_steps: int = 0
    episodes: int = 0
    agent_steps: Counter[str] = field(default_factory=Counter)
    module_steps: Counter[str] = field(default_factory=Counter)
    unattributed_reward: float = 0.0

    def add(self, goal: Goal, summary: CallSummary) -> None:
        """Add the counts of a call of `sample()`."""
        self.calls += 1
        self.ticks += goal.ticks
        self.env_steps += goal.env_steps
        self.episodes += summary.num_episodes
        add_by_name(self.agent_steps, summary.agent_steps)
        add_by_name(self.module_steps, summary.module_steps)
        self.unattributed_reward += summary.unattributed_reward

    def merge(self, other: "Counts") -> None:
        """Add the counts of another runner."""
        self.calls += other.calls
        self.pauses += other.pauses
        self.ticks += other.ticks
        self.env_steps += other.env_steps
        self.episodes += other.episodes
        add_by_name(self.agent_steps, other.agent_steps)
        add_by_name(self.module_steps, other.module_steps)
        self.unattributed_reward += other.unattributed_reward


def add_by_name(steps: Counter[str], by_id: Mapping[Any, int]) -> None:
    """Add counts under the string form of each agent or module id, so 1 and "1" share a count.

    Once there are NAMED names, counts of new ones are added to OTHERS.
    """
    for id_, n in by_id.items():
        name = str(id_)
        steps[name if name in steps or len(steps) < NAMED else OTHERS] += n


STAGES = ("env", "scatter", "connect", "forward", "record", "send", "reset", "bookkeeping")
TIMED_STAGES = ("env", "scatter", "send")  # timed in only some ticks
REDUCTIONS: dict[str, Callable[[Any], float]] = {"mean": np.mean, "min": np.min, "max": np.max}
COUNTED = {  # each also with "_lifetime"
    "env_steps": "num_env_steps_sampled",
    "agent_steps": "num_agent_steps_sampled",
    "module_steps": "num_module_steps_sampled",
    "episodes": "num_episodes",
}
FAILED = {
    "num_env_failures": "failures",
    "num_env_timeouts": "timeouts",
    "num_env_restarts": "restarts",
    "num_env_steps_discarded": "steps_discarded",
}


@dataclass
class Increment:
    """Counter increments of a runner, for aggregating metrics over several runners.

    Attributes:
        counts, seconds, failures: Values since the last increment.
        episodes: The latest episodes finished since then, limited to the window of the means.
        custom: Values logged by callbacks; see `MetricsLogger.journal`.
    """

    counts: Counts
    seconds: dict[str, float]
    failures: Counter[str]
    episodes: list[EpisodeSummary]
    custom: list[tuple[tuple, Any, dict[str, Any]]]


class RunnerMetrics:
    """Counts and times of a runner.

    Args:
        window: Number of episodes for means, minima and maxima.

    Attributes:
        logger: Stores the values logged by callbacks.
        lifetime: Counts over the lifetime of the runner.
        seconds, failures: Values since the last report or increment.
    """

    def __init__(self, window: int):
        self._episodes: deque[EpisodeSummary] = deque(maxlen=window)
        self.logger = MetricsLogger(root=True)
        self.lifetime = Counts()
        self._new = Counts()  # since the last report or increment
        self.seconds: defaultdict[str, float] = defaultdict(float)  # see _stage_seconds()
        self._timed = dict.fromkeys(TIMED_STAGES, 0.0)  # last measured `seconds` of the timed stages
        self.failures: Counter[str] = Counter()
        self._failures_reported = 0
        self._ended_at: float | None = None  # end of the last call of sample()
        self._under_way: tuple[Goal, EpisodeLog] | None = None
        self._weights_seq_no, self._module_ids = 0, list[str]()

    def lend_logger(self) -> MetricsLogger:
        """Return the logger, which reads the counts and references this object; the caller must keep it alive."""
        logger = self.logger
        logger.elsewhere = {
            **self._readers(),
            **{name: partial(self._one_of, self._times, name) for name in self._times()},
            **{name: partial(self._one_of, self._episode_statistics, name) for name in self._episode_statistics()},
        }
        logger.all_elsewhere = self._all
        self.logger = weakref.proxy(logger)
        return logger

    # Calls of `sample()`.

    def begin_call(self, begun: float, weights_seq_no: int, module_ids: Iterable[str]) -> None:
        """Record that a call of `sample()` started at this `perf_counter()` time, with these weights and modules."""
        self._under_way = None
        self._weights_seq_no, self._module_ids = weights_seq_no, list(module_ids)
        if self._ended_at is not None:
            self.seconds["between"] += begun - self._ended_at
            self._new.pauses += 1

    def watch_call(self, goal: Goal, log: EpisodeLog) -> None:
        """Make the counts of the current call visible to callbacks that call `peek()`."""
        self._under_way = goal, log

    def add_call(self, goal: Goal, summary: CallSummary) -> None:
        """Add the counts of a call of `sample()`."""
        self._under_way = None
        self._new.add(goal, summary)
        self.lifetime.add(goal, summary)
        self._episodes.extend(summary.episodes)

    def end_call(self, begun: float, ended: float) -> None:
        """Record the end of a call of `sample()` that started at `begun`."""
        self.seconds["sample"] += ended - begun
        self._ended_at = ended

    # Increments.

    def take_increment(self) -> Increment:
        """Return the counts since the last increment and reset them; use this instead of reports.

        The first increment includes custom values only after `logger.begin_journal()`; later ones always do.
        """
        n_ended = min(self._new.episodes, len(self._episodes))
        ended = list(self._episodes)[len(self._episodes) - n_ended :]
        custom, self.logger.journal = self.logger.journal or [], []
        self.logger.reduce(compile=True)
        increment = Increment(self._new, dict(self.seconds), Counter(self.failures), ended, custom)
        self._start_over()
        return increment

    def merge(self, increment: Increment) -> None:
        """Add the increment of another runner, so that reports cover all runners together."""
        self._new.merge(increment.counts)
        self.lifetime.merge(increment.counts)
        for name, seconds in increment.seconds.items():
            self.seconds[name] += seconds
        self.failures.update(increment.failures)
        self._episodes.extend(increment.episodes)
        for path, value, options in increment.custom:
            self.logger.log_value(path, value, **options)

    def _start_over(self) -> None:
        self._new = Counts()
        self._timed = self._timed_seconds()
        self.seconds.clear()
        self._failures_reported += self.failures["failures"]
        self.failures.clear()

    # State.

    def get_state(self) -> dict[str, Any]:
        """Return the lifetime counters (except env steps) and the episodes used for means."""
        return {
            "num_episodes": self.lifetime.episodes,
            "num_agent_steps": dict(self.lifetime.agent_steps),
            "num_module_steps": dict(self.lifetime.module_steps),
            "custom": self.logger.lifetime_sums(),
            "last_episodes": [asdict(episode) for episode in self._episodes],
        }

    def check_state(self, state: Any) -> None:
        """Raise ConfigError if `set_state()` does not accept `state`."""
        names = "num_episodes", "num_agent_steps", "num_module_steps", "custom", "last_episodes"
        check_keys("lifetime_counters", state, names)
        whole_number("num_episodes", state["num_episodes"])
        for name in ("num_agent_steps", "num_module_steps"):
            check_mapping(name, state[name])
            for id_, steps in state[name].items():
                whole_number(f"{name} of {id_!r}", steps)
        sums = state["custom"]
        for item in sums if isinstance(sums, (list, tuple)) else [sums]:
            is_sum = isinstance(item, (list, tuple)) and len(item) in (2, 3) and isinstance(item[0], (list, tuple))
            if not is_sum or not isinstance(item[1], (int, float)):
                raise ConfigError(f"sums of custom metrics must be pairs of a key and a number, got {item!r:.200}")
        episodes = state["last_episodes"]
        if not isinstance(episodes, (list, tuple)):
            raise ConfigError(f"last_episodes must be a list, got {episodes!r:.200}")
        for episode in episodes:
            _check_summary(episode)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with these counters."""
        self.lifetime.episodes = int(state["num_episodes"])
        self.lifetime.agent_steps = Counter({name: int(n) for name, n in state["num_agent_steps"].items()})
        self.lifetime.module_steps = Counter({name: int(n) for name, n in state["num_module_steps"].items()})
        self.logger.set_lifetime_sums(state["custom"])
        self._episodes.clear()
        self._episodes.extend(EpisodeSummary(**deepcopy(episode)) for episode in state["last_episodes"])

    # Reports.

    def report(self, weights_seq_no: int, module_ids: Iterable[str]) -> dict[str, Any]:
        """Return all metrics from the last report to the end of the last call, and reset them.

        Means are over the last episodes. Times are in seconds; `stage_time_ms` and `mean_..._ms` are in milliseconds
        per tick (one step of all envs).

        Args:
            weights_seq_no: Sequence number of the current weights.
            module_ids: Ids of the current modules; modules that have not acted count 0 steps.
        """
        self._weights_seq_no, self._module_ids = weights_seq_no, list(module_ids)
        under_way, self._under_way = self._under_way, None
        report = self._all()
        self._start_over()
        self._under_way = under_way
        return merged(report, self.logger.compile())

    def _all(self) -> dict[str, Any]:
        """Return the current values of all metrics except logged ones."""
        counted = {name: read() for name, read in self._readers().items()}
        return {**counted, **self._times(), **self._episode_statistics()}

    def _readers(self) -> dict[str, Callable[[], Any]]:
        """Return metric name -> function that reads its counter."""
        return {
            **{
                f"{name}{life}": partial(self._count, what, bool(life))
                for what, name in COUNTED.items()
                for life in ("", "_lifetime")
            },
            "unattributed_reward": lambda: self._new.unattributed_reward,
            "num_env_step_failures": lambda: self._failures_reported + self.failures["failures"],
            **{name: partial(self.failures.__getitem__, of) for name, of in FAILED.items()},
            "weights_seq_no": lambda: self._weights_seq_no,
        }

    def _count(self, what: str, of_lifetime: bool) -> Any:
        """Return a count since the last report or over the lifetime, including the current call."""
        counted = getattr(self.lifetime if of_lifetime else self._new, what)
        if what in ("env_steps", "episodes"):
            if self._under_way is None:
                return counted
            goal, log = self._under_way
            return counted + (goal.env_steps if what == "env_steps" else log.num_episodes_so_far())
        steps = Counter(dict.fromkeys(self._module_ids, 0) if what == "module_steps" else {})
        steps.update(counted)
        if self._under_way is not None:
            log = self._under_way[1]
            add_by_name(steps, log.agent_steps_so_far() if what == "agent_steps" else log.module_steps_so_far())
        return dict(steps)

    @staticmethod
    def _one_of(group: Callable[[], dict[str, Any]], name: str) -> Any:
        return group()[name]

    def _times(self) -> dict[str, Any]:
        calls, ticks, pauses = max(1, self._new.calls), max(1, self._new.ticks), self._new.pauses
        seconds = self._stage_seconds()
        stage_ms = {stage: 1e3 * seconds[stage] / ticks for stage in STAGES}
        return {
            "sample": self.seconds.get("sample", 0.0) / calls,
            "time_between_sampling": self.seconds["between"] / pauses if pauses else NAN,
            "env_reset_timer": seconds["reset"] / calls,
            "env_step_timer": seconds["env"] / ticks,
            "rlmodule_inference_timer": seconds["forward"] / ticks,
            "env_to_module_connector": {"connector_pipeline_timer": seconds["connect"] / ticks},
            "module_to_env_connector": {"connector_pipeline_timer": (seconds["record"] + seconds["send"]) / ticks},
            "stage_time_ms": stage_ms,
            # Names from the old RLlib stack.
            "mean_env_wait_ms": stage_ms["env"],
            "mean_inference_ms": stage_ms["forward"],
            "mean_raw_obs_processing_ms": stage_ms["scatter"] + stage_ms["connect"],
            "mean_action_processing_ms": stage_ms["record"] + stage_ms["send"],
        }

    def _stage_seconds(self) -> dict[str, float]:
        """Return the seconds spent in each stage.

        The time of the vector is divided among its stages in proportion to their times in the ticks timed since the
        last report or, failing that, before it.
        """
        seconds = self.seconds
        stages = {stage: seconds[stage] for stage in ("connect", "forward", "record", "reset")}
        stepping = seconds["vector"] - seconds["after_step"]
        timed = self._timed_seconds()
        for stage, spent in timed.items():
            stages[stage] = stepping * spent / (sum(timed.values()) or 1.0)
        stages["bookkeeping"] = max(0.0, seconds["sample"] - sum(stages.values()))
        return stages

    def _timed_seconds(self) -> dict[str, float]:
        timed = {stage: self.seconds.get(f"timed_{stage}", 0.0) for stage in TIMED_STAGES}
        return timed if any(timed.values()) else self._timed

    def _episode_statistics(self) -> dict[str, Any]:
        episodes = self._episodes
        returns = [sum(episode.module_returns.values()) for episode in episodes]
        lengths = [episode.env_steps for episode in episodes]
        durations = [episode.duration_s for episode in episodes]
        return {
            **{f"episode_return_{name}": _reduced(name, returns) for name in REDUCTIONS},
            **{f"episode_len_{name}": _reduced(name, lengths) for name in REDUCTIONS},
            "episode_duration_sec_mean": _reduced("mean", durations),
            "agent_episode_returns_mean": self._mean_by_key("agent_returns"),
            "agent_steps": self._mean_by_key("agent_steps"),
            "module_episode_returns_mean": self._mean_by_key("module_returns"),
        }

    def _mean_by_key(self, name: str) -> dict[str, float]:
        """Return the mean per agent (or module) over the episodes in which it took part."""
        values: dict[str, list[float]] = {}
        for episode in self._episodes:
            for key, value in getattr(episode, name).items():
                values.setdefault(key, []).append(value)
        return {key: float(np.mean(seen)) for key, seen in values.items()}


def _check_summary(episode: Any) -> None:
    """Raise ConfigError unless `episode` is the dict form of an `EpisodeSummary`."""
    check_keys("an episode in last_episodes", episode, [field.name for field in fields(EpisodeSummary)])
    for name, value in episode.items():
        is_by_id = name not in ("env_steps", "duration_s")
        numbers = value.values() if isinstance(value, dict) else [value]
        if is_by_id != isinstance(value, dict) or any(
            isinstance(number, bool) or not isinstance(number, (int, float)) for number in numbers
        ):
            raise ConfigError(f"{name} of an episode in last_episodes must be numeric, got {value!r:.200}")


def _reduced(name: str, values: Sequence[float]) -> float:
    return float(REDUCTIONS[name](values)) if values else NAN

"""What runners report: RLlib's names and meanings, as plain numbers.

The store counts in arrays; here the counts get their names, once per `get_metrics()`.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastmarl.core.episodes.summaries import CallSummary, EpisodeSummary
from fastmarl.core.errors import ConfigError
from fastmarl.core.runner.goals import Goal
from fastmarl.core.states import check_keys, check_mapping, whole_number

STAGES = ("env", "scatter", "connect", "forward", "record", "send", "reset", "bookkeeping")
TIMED_STAGES = ("env", "scatter", "send")  # have clocks in some ticks only
NAMED = 4096  # ids with a count of their own: where they never end, the report must not grow with them
OTHERS = "__others__"
REDUCTIONS: dict[str, Callable[[Any], float]] = {"mean": np.mean, "min": np.min, "max": np.max, "sum": np.sum}


class MetricsLogger:
    """Takes custom values from callbacks: `metrics_logger.log_value("hits", 3)`. Part of RLlib's class of that name.

    Attributes:
        journal: if it is a list, it gets each `log_value()`: its key, value and options.
    """

    def __init__(self) -> None:
        self.journal: list[tuple[tuple, float, dict[str, Any]]] | None = None
        self._values: dict[tuple, tuple[str, deque]] = {}
        self._lifetime: defaultdict[tuple, float] = defaultdict(float)

    def log_value(
        self,
        key: str | tuple,
        value: float,
        *,
        reduce: str = "mean",
        window: int | None = None,
        clear_on_reduce: bool = False,
    ) -> None:
        """Add a value under `key`, nested by a tuple of keys.

        Args:
            reduce: "mean", "min", "max", "sum" or "lifetime_sum".
            window: keep the last so many values (None: those since the last report; a mean then covers the last 100).
            clear_on_reduce: forget the values with each report.
        """
        path = key if isinstance(key, tuple) else (key,)
        if self.journal is not None:
            self.journal.append((path, value, {"reduce": reduce, "window": window, "clear_on_reduce": clear_on_reduce}))
        if reduce == "lifetime_sum":
            self._lifetime[path] += value
        elif reduce in REDUCTIONS:
            keep = window is not None or (reduce == "mean" and not clear_on_reduce)
            values: deque = deque(maxlen=window or (100 if keep else None))
            self._values.setdefault(path, (reduce, values))[1].append(value)
        else:
            raise ValueError(f"reduce must be 'lifetime_sum' or one of {sorted(REDUCTIONS)}, got {reduce!r}")

    def log_dict(self, values: dict[str, Any], *, key: str | tuple = (), **options: Any) -> None:
        """`log_value` for every entry of a nested dict."""
        path = key if isinstance(key, tuple) else (key,)
        for name, value in values.items():
            if isinstance(value, dict):
                self.log_dict(value, key=(*path, name), **options)
            else:
                self.log_value((*path, name), value, **options)

    def peek(self, key: str | tuple, default: float | None = None) -> float | None:
        """The value as it would be reported now."""
        path = key if isinstance(key, tuple) else (key,)
        if path in self._lifetime:
            return self._lifetime[path]
        reduce, values = self._values.get(path, ("mean", ()))
        return float(REDUCTIONS[reduce](values)) if values else default

    def begin_journal(self) -> None:
        """Keep one from now on. What was logged before, as by callbacks when envs are made, is in it."""
        self.journal = [
            (path, value, {"reduce": reduce, "window": values.maxlen, "clear_on_reduce": values.maxlen is None})
            for path, (reduce, values) in self._values.items()
            for value in values
        ]
        self.journal += [(path, total, {"reduce": "lifetime_sum"}) for path, total in self._lifetime.items()]

    def get_state(self) -> list[tuple[list[str], float]]:
        """(key, sum) of each "lifetime_sum"."""
        return [(list(path), value) for path, value in self._lifetime.items()]

    def check_state(self, state: Any) -> None:
        """Raises ConfigError if `set_state()` can't take `state`."""
        for item in state if isinstance(state, (list, tuple)) else [state]:
            is_pair = isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], (list, tuple))
            if not is_pair or not isinstance(item[1], (int, float)):
                raise ConfigError(f"sums of custom metrics must be pairs of a key and a number, got {item!r:.200}")

    def set_state(self, state: list[tuple[list[str], float]]) -> None:
        """Go on with these sums."""
        self._lifetime = defaultdict(float, {tuple(path): value for path, value in state})

    def reduce(self) -> dict[str, Any]:
        """A nested dict of all values, reduced."""
        report: dict[str, Any] = {}
        for path in [*self._values, *self._lifetime]:
            value = self.peek(path)
            if value is not None:
                *parents, last = path
                inner = report
                for parent in parents:
                    inner = inner.setdefault(parent, {})
                inner[last] = value
        self.start_over()
        return report

    def start_over(self) -> None:
        """Forget the values since the last report; those of windows stay."""
        for _, values in self._values.values():
            if values.maxlen is None:
                values.clear()


@dataclass
class Counts:
    """What has been sampled since the last report, or in the runner's life."""

    calls: int = 0
    ticks: int = 0
    env_steps: int = 0
    episodes: int = 0
    agent_steps: Counter[str] = field(default_factory=Counter)
    module_steps: Counter[str] = field(default_factory=Counter)
    unattributed_reward: float = 0.0

    def add(self, goal: Goal, summary: CallSummary) -> None:
        """Take those of one call of sample()."""
        self.calls += 1
        self.ticks += goal.ticks
        self.env_steps += goal.env_steps
        self.episodes += summary.num_episodes
        _add_by_name(self.agent_steps, summary.agent_steps)
        _add_by_name(self.module_steps, summary.module_steps)
        self.unattributed_reward += summary.unattributed_reward

    def merge(self, other: "Counts") -> None:
        """Take what was counted elsewhere."""
        self.calls += other.calls
        self.ticks += other.ticks
        self.env_steps += other.env_steps
        self.episodes += other.episodes
        _add_by_name(self.agent_steps, other.agent_steps)
        _add_by_name(self.module_steps, other.module_steps)
        self.unattributed_reward += other.unattributed_reward


@dataclass
class Increment:
    """What one runner has counted for a while, as another process may take it.

    Attributes:
        counts, seconds, failures: since the last increment.
        episodes: the last that have ended since then, at most as many as means go over.
        custom: what callbacks have logged: `MetricsLogger.journal`.
    """

    counts: Counts
    seconds: dict[str, float]
    failures: Counter[str]
    episodes: list[EpisodeSummary]
    custom: list[tuple[tuple, float, dict[str, Any]]]


class RunnerMetrics:
    """Counts and times of one runner.

    Args:
        window: episodes over which means, minima and maxima go.
    """

    def __init__(self, window: int):
        self._episodes: deque[EpisodeSummary] = deque(maxlen=window)
        self.logger = MetricsLogger()
        self.lifetime = Counts()
        self._new = Counts()  # since the last report or increment, as all below
        self.seconds: defaultdict[str, float] = defaultdict(float)  # see _stage_seconds()
        self._timed = dict.fromkeys(TIMED_STAGES, 0.0)  # of `seconds`: what the clocks last showed
        self.failures: Counter[str] = Counter()

    def add_call(self, goal: Goal, summary: CallSummary) -> None:
        """Take the counts of one call of sample()."""
        self._new.add(goal, summary)
        self.lifetime.add(goal, summary)
        self._episodes.extend(summary.episodes)

    def take_increment(self) -> Increment:
        """What was counted since the last one, instead of reports. Custom values are in it if `logger.begin_journal()`
        was called, or from the second call on."""
        n_ended = min(self._new.episodes, len(self._episodes))
        ended = list(self._episodes)[len(self._episodes) - n_ended :]
        custom, self.logger.journal = self.logger.journal or [], []
        self.logger.start_over()
        increment = Increment(self._new, dict(self.seconds), Counter(self.failures), ended, custom)
        self._start_over()
        return increment

    def merge(self, increment: Increment) -> None:
        """Take what another runner has counted: reports are then those of all together."""
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
        self.failures.clear()

    def get_state(self) -> dict[str, Any]:
        """The counters of the runner's whole life, except env steps."""
        return {
            "num_episodes": self.lifetime.episodes,
            "num_agent_steps": dict(self.lifetime.agent_steps),
            "num_module_steps": dict(self.lifetime.module_steps),
            "custom": self.logger.get_state(),
        }

    def check_state(self, state: Any) -> None:
        """Raises ConfigError if `set_state()` can't take `state`."""
        check_keys("lifetime_counters", state, ("num_episodes", "num_agent_steps", "num_module_steps", "custom"))
        whole_number("num_episodes", state["num_episodes"])
        for name in ("num_agent_steps", "num_module_steps"):
            check_mapping(name, state[name])
            for id_, steps in state[name].items():
                whole_number(f"{name} of {id_!r}", steps)
        self.logger.check_state(state["custom"])

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with these counters."""
        self.lifetime.episodes = int(state["num_episodes"])
        self.lifetime.agent_steps = Counter({name: int(n) for name, n in state["num_agent_steps"].items()})
        self.lifetime.module_steps = Counter({name: int(n) for name, n in state["num_module_steps"].items()})
        self.logger.set_state(state["custom"])

    def report(self, weights_seq_no: int, module_ids: Iterable[str]) -> dict[str, Any]:
        """Everything since the last report (means over the last episodes), and start over.

        `module_ids` are those of today's modules, which are counted also where they have not acted.
        Times are in seconds; `stage_time_ms` and `mean_..._ms` in milliseconds per tick (one step of all envs).
        """
        new, lifetime, nothing = self._new, self.lifetime, dict.fromkeys(module_ids, 0)
        report: dict[str, Any] = {
            "num_env_steps_sampled": new.env_steps,
            "num_env_steps_sampled_lifetime": lifetime.env_steps,
            "num_agent_steps_sampled": dict(new.agent_steps),
            "num_agent_steps_sampled_lifetime": dict(lifetime.agent_steps),
            "num_module_steps_sampled": {**nothing, **new.module_steps},
            "num_module_steps_sampled_lifetime": {**nothing, **lifetime.module_steps},
            "num_episodes": new.episodes,
            "num_episodes_lifetime": lifetime.episodes,
            "unattributed_reward": new.unattributed_reward,
            "num_env_failures": self.failures["failures"],
            "num_env_timeouts": self.failures["timeouts"],
            "num_env_restarts": self.failures["restarts"],
            "num_env_steps_discarded": self.failures["steps_discarded"],
            "weights_seq_no": weights_seq_no,
            **self._times(),
            **self._episode_statistics(),
            **self.logger.reduce(),
        }
        self._start_over()
        return report

    def _times(self) -> dict[str, Any]:
        calls, ticks = max(1, self._new.calls), max(1, self._new.ticks)
        seconds = self._stage_seconds()
        stage_ms = {stage: 1e3 * seconds[stage] / ticks for stage in STAGES}
        return {
            "sample": self.seconds["sample"] / calls,
            "env_reset_timer": seconds["reset"] / calls,
            "env_step_timer": seconds["env"] / ticks,
            "rlmodule_inference_timer": seconds["forward"] / ticks,
            "stage_time_ms": stage_ms,
            # Names of RLlib's old stack.
            "mean_env_wait_ms": stage_ms["env"],
            "mean_inference_ms": stage_ms["forward"],
            "mean_raw_obs_processing_ms": stage_ms["scatter"] + stage_ms["connect"],
            "mean_action_processing_ms": stage_ms["record"] + stage_ms["send"],
        }

    def _stage_seconds(self) -> dict[str, float]:
        """Seconds of each stage. What the vector takes is shared among its stages as in the ticks with clocks: those
        since the last report or, if there were none, the ones before."""
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
        if not self._episodes:
            return {}
        returns = [sum(episode.module_returns.values()) for episode in self._episodes]
        lengths = [episode.env_steps for episode in self._episodes]
        return {
            **{f"episode_return_{name}": float(REDUCTIONS[name](returns)) for name in ("mean", "min", "max")},
            **{f"episode_len_{name}": float(REDUCTIONS[name](lengths)) for name in ("mean", "min", "max")},
            "episode_duration_sec_mean": float(np.mean([episode.duration_s for episode in self._episodes])),
            "agent_episode_returns_mean": self._mean_by_key("agent_returns"),
            "agent_steps": self._mean_by_key("agent_steps"),
            "module_episode_returns_mean": self._mean_by_key("module_returns"),
        }

    def _mean_by_key(self, name: str) -> dict[str, float]:
        """Means over the episodes in which an agent (or module) took part."""
        values: dict[str, list[float]] = {}
        for episode in self._episodes:
            for key, value in getattr(episode, name).items():
                values.setdefault(str(key), []).append(value)
        return {key: float(np.mean(seen)) for key, seen in values.items()}


def _add_by_name(steps: Counter[str], by_id: Mapping[Any, int]) -> None:
    """Add counts under agents' or modules' names; the ids 1 and "1" share one, and so do all beyond NAMED."""
    for id_, n in by_id.items():
        name = str(id_)
        steps[name if name in steps or len(steps) < NAMED else OTHERS] += n

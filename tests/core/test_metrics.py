"""Custom values from callbacks, counts that callbacks peek, and the times of stages."""

import math
import pickle
import time

import numpy as np
import pytest
import torch
from support.actors import make_runner
from support.scripted import scripted

from fastmarl.core.episodes import log
from fastmarl.runner.loop import sampling
from fastmarl.runner.loop.runner_metrics import NAMED, OTHERS, RunnerMetrics
from fastmarl.runner.metrics.metrics_logger import MetricsLogger


def test_windows_without_an_end_have_all_values():
    """RLlib's annotations have inf, and its deque refuses it."""
    logger = MetricsLogger()
    for value in range(1000):
        logger.log_value("mean", value, window=math.inf)
        logger.log_value("series", value, reduce="item_series", window=math.inf)
    assert logger.reduce(compile=True) == {"mean": 499.5, "series": list(range(1000))}


def test_options_and_values_that_do_not_fit_are_named():
    logger = MetricsLogger()
    with pytest.raises(ValueError, match=r"'median'"):
        logger.log_value("x", 1.0, reduce="median")
    with pytest.raises(ValueError, match=r"did you mean 'percentiles'"):
        logger.log_value("x", 1.0, reduce="percentile")
    with pytest.raises(ValueError, match=r"'x'.*reduce='ema' does not accept window; it accepts ema_coeff"):
        logger.log_value("x", 1.0, reduce="ema", window=3)
    with pytest.raises(TypeError, match=r"widow"):
        logger.log_value("x", 1.0, widow=3)
    for options, text in (
        ({"reduce": "percentiles", "percentiles": [50, 120]}, r"numbers from 0 to 100, got \[50, 120\]"),
        ({"reduce": "percentiles", "percentiles": ["50"]}, r"numbers from 0 to 100"),
        ({"reduce": "percentiles", "percentiles": [math.nan]}, r"numbers from 0 to 100"),
        ({"window": 0}, r"window must be None, inf or a number >= 1, got 0"),
        ({"window": math.nan}, r">= 1, got nan"),
        ({"window": "5"}, r">= 1, got '5'"),
    ):
        with pytest.raises(ValueError, match=text):
            logger.log_value("x", 1.0, **options)
    assert "x" not in logger  # nothing was added
    with pytest.raises(ValueError, match=r"a non-empty tuple of names, got \(\)"):
        logger.log_value((), 1.0)
    with pytest.raises(ValueError, match=r"'huge'.*too large"):
        logger.log_value("huge", 10**400, reduce="sum")
    for value in ("text", np.zeros(2), None):
        with pytest.raises(ValueError, match=r"'x'.*expected a single number, got .*item_series"):
            logger.log_value("x", value, reduce="mean")
    with pytest.raises(ValueError, match=r"expected a number, got NaN"):
        logger.log_value("p", math.nan, reduce="percentiles")
    for clash in (("x", "y"), ("a",)):
        logger.log_value(("a", "b"), 1.0)
        with pytest.raises(ValueError, match=r"as values were logged under"):
            logger.log_value(clash, 1.0)
    with pytest.raises(KeyError, match=r"did you mean 'a'"):
        logger.peek("ab")
    with pytest.raises(ValueError, match=r"log_value\(\)"):
        logger.aggregate([{"x": 3.0}])
    with pytest.raises(ValueError, match=r"another key"):
        logger.aggregate([logger.reduce()])


def test_reductions_of_ones_own():
    lookup = dict(MetricsLogger().stats_cls_lookup)

    class Median(lookup["mean"]):
        stats_cls_identifier = "median"

        def reduced(self, values):
            return float(np.median(values))

    leaves, above = [MetricsLogger(stats_cls_lookup=lookup | {"median": Median}) for _ in range(2)], MetricsLogger()
    for n, leaf in enumerate(leaves):
        for value in (1, 2, 30, 40 + n):
            leaf.log_value("x", value, reduce="median", window=3)
    assert [leaf.peek("x") for leaf in leaves] == [30.0, 30.0]
    other = MetricsLogger(stats_cls_lookup=leaves[0].stats_cls_lookup)
    other.set_state(leaves[1].get_state())
    assert len(other.stats["x"]) == 3 and float(other.stats["x"]) == other.peek("x") == 30.0
    above.aggregate([leaf.reduce() for leaf in leaves], key="both")
    assert above.peek() == {"both": {"x": 30.0}} and "30" in repr(above.stats["both"]["x"])
    above.reset()
    assert above.peek() == {}


def test_a_journal_can_be_pickled():
    logger = MetricsLogger()
    logger.begin_journal()
    weights = torch.ones(2, requires_grad=True)
    logger.log_value("loss", (weights * 2).sum(), reduce="item")
    assert pickle.loads(pickle.dumps(logger.journal)) == [(("loss",), 4.0, {"reduce": "item"})]


def test_a_state_has_all_that_goes_on():
    logger, other = MetricsLogger(root=True), MetricsLogger(root=True)
    for value in (1.0, 5.0):
        for reduce in ("mean", "ema", "min", "max", "sum", "lifetime_sum", "percentiles", "item", "item_series"):
            logger.log_value((reduce, "x"), value, reduce=reduce)
        logger.log_value("window", value, window=2)
    other.set_state(logger.get_state())
    for each in (logger, other):
        each.log_value("window", 9.0)
        each.log_value(("sum", "x"), 1.0)
    assert other.peek() == logger.peek()
    assert other.peek("window") == 7.0 and other.peek(("lifetime_sum", "x")) == 6.0
    assert other.reduce(compile=True) == logger.reduce(compile=True)


def test_a_report_does_not_grow_with_ids_that_never_end():
    from fastmarl.core.episodes.summaries import CallSummary
    from fastmarl.runner.loop.goals import Goal

    metrics = RunnerMetrics(window=1)
    for first in range(0, 3 * NAMED, 1000):
        metrics.add_call(Goal(), CallSummary(agent_steps=dict.fromkeys(range(first, first + 1000), 2)))
    steps = metrics.report(0, [])["num_agent_steps_sampled"]
    assert len(steps) == NAMED + 1
    assert steps["5"] == 2
    assert sum(steps.values()) == 2 * 13_000
    assert steps[OTHERS] == 2 * (13_000 - NAMED)


OPTIONS = (
    {},
    {"window": 3},
    {"window": math.inf},
    {"ema_coeff": 0.5},
    {"reduce": "min", "window": 2},
    {"reduce": "max"},
    {"reduce": "lifetime_sum", "with_throughput": True},
    {"reduce": "percentiles", "window": 4, "percentiles": [10, 90]},
    {"reduce": "item"},
    {"reduce": "item_series", "window": 3},
)


def test_agents_of_one_name_share_an_entry_with_their_sum():
    runner = make_runner(env_config={"agents": [1, "1", "b"]})
    runner.sample(num_episodes=2)
    metrics = runner.get_metrics()
    for name in ("agent_episode_returns_mean", "agent_steps"):
        assert metrics[name] == {"1": 20, "b": 10}
    assert metrics["num_agent_steps_sampled"] == {"1": 40, "b": 20}


def test_increments_of_several_runners_make_one_report():
    from fastmarl.core.episodes.summaries import CallSummary, EpisodeSummary
    from fastmarl.runner.loop.goals import Goal

    def call(metrics, n_episodes, value):
        ended = [EpisodeSummary(5, 0.1, {"a": value}, {"a": 5}, {"p": value}) for _ in range(n_episodes)]
        goal = Goal()
        goal.ticks, goal.env_steps = 10, 20
        metrics.add_call(goal, CallSummary(n_episodes, ended, {"a": 7}, {"p": 7}, 0.5))
        metrics.seconds["sample"] += value
        metrics.failures["failures"] += 1
        metrics.logger.log_value("sum", value, reduce="sum")
        for options in OPTIONS:
            metrics.logger.log_value(("options", str(options)), value, **options)
        with metrics.logger.log_time("time"):
            pass

    runners, all_together = [RunnerMetrics(window=4) for _ in range(2)], RunnerMetrics(window=4)
    for runner in runners:
        runner.take_increment()
    together = RunnerMetrics(window=4)
    for n_episodes, value in ((3, 1.0), (2, 4.0), (0, 9.0)):
        for runner in runners:
            call(runner, n_episodes, value)
            call(all_together, n_episodes, value)
            together.merge(runner.take_increment())
    report, expected = together.report(3, ["p"]), all_together.report(3, ["p"])
    assert report.pop("time") > 0 and expected.pop("time") > 0
    for each in (report, expected):
        assert each["options"].pop(f"{OPTIONS[6]}_throughput")
    assert report == expected
    assert report["episode_return_mean"] == 4 and report["sample"] == 28 / 6 and report["sum"] == 28
    assert report["num_agent_steps_sampled"] == {"a": 42} and report["num_env_failures"] == 6
    assert not runners[0].logger.journal and math.isnan(runners[0].logger.peek("sum"))  # nothing piles up


def test_a_journal_that_begins_late_has_values_logged_before():
    """Callbacks log when envs are made, before a group takes increments."""
    first, second = RunnerMetrics(window=1), RunnerMetrics(window=1)
    for value in (3.0, 1.0, 2.0):
        for options in OPTIONS:
            first.logger.log_value(("options", str(options)), value, **options)
    expected = first.logger.peek("options")
    first.logger.begin_journal()
    second.merge(first.take_increment())
    assert second.logger.peek("options") == expected


def test_lifetime_sums_are_in_the_state_with_their_throughput():
    metrics, other = RunnerMetrics(window=1), RunnerMetrics(window=1)
    metrics.logger.log_value(("a", "b"), 5, reduce="lifetime_sum", with_throughput=True)
    metrics.logger.log_value("c", 2, reduce="lifetime_sum")
    other.check_state(metrics.get_state())
    other.set_state(metrics.get_state())
    other.logger.log_value(("a", "b"), 1)
    assert other.logger.peek(("a", "b")) == 6 and other.logger.peek("c") == 2
    assert other.logger.peek(("a", "b"), throughput=True)["throughput_since_last_restore"] > 0
    other.set_state({**metrics.get_state(), "custom": [(["c"], 1.5)]})  # as of older checkpoints
    assert other.logger.peek() == {**other.logger.peek(), "c": 1.5} and "a" not in other.logger


# What callbacks peek.


def peeked(event, name, **options):
    """(runner, list of what `peek(name)` returns in each call of this callback)"""
    seen = []

    def look(metrics_logger, **kwargs):
        seen.append(metrics_logger.peek(name, default=-1))

    runner = make_runner(**{f"callbacks_{event}": look}, **options)
    return runner, seen


def test_metrics_have_the_counts_of_the_current_call():
    runner, seen = peeked("on_episode_step", None)
    runner.sample(num_timesteps=12)
    runner.get_metrics()
    runner.sample(num_timesteps=3)
    assert [each["num_env_steps_sampled_lifetime"] for each in seen] == [*range(1, 16)]
    assert [each["num_env_steps_sampled"] for each in seen] == [*range(1, 13), 1, 2, 3]
    assert [each["num_episodes"] for each in seen] == [0] * 9 + [1] * 3 + [0] * 3
    assert [each["num_agent_steps_sampled_lifetime"]["b"] for each in seen] == [*range(1, 16)]
    assert [each["num_module_steps_sampled"]["default_policy"] for each in seen] == [*range(2, 26, 2), 2, 4, 6]
    report, peek = runner.get_metrics(), runner.metrics.peek()
    assert report.keys() == peek.keys()
    lifetime = [name for name in report if name.endswith("_lifetime") or name.startswith("episode_")]
    assert {name: report[name] for name in lifetime} == {name: peek[name] for name in lifetime}
    assert peek["num_env_steps_sampled"] == peek["num_episodes"] == 0
    runner.stop()


@pytest.mark.parametrize("options", [{}, {"worker_num_splits": 2}])
def test_counts_after_a_call_are_those_of_the_report(options):
    runner, seen = peeked("on_sample_end", ("num_agent_steps_sampled", "a"), num_envs_per_env_runner=4, **options)
    for _ in range(3):
        runner.sample(num_timesteps=20)
        assert runner.get_metrics()["num_agent_steps_sampled"]["a"] == seen[-1] > 0
        runner.sample(num_episodes=1)
        assert runner.metrics.peek("num_env_steps_sampled") == runner.get_metrics()["num_env_steps_sampled"] > 0
    runner.stop()


def test_counts_of_a_call_that_fails_are_those_that_are_reported():
    fails = ["ab", *["ab"] * 7, RuntimeError("at the 8th step")]
    path = "num_module_steps_sampled_lifetime", "default_policy"
    runner, seen = peeked("on_episode_step", path, env=scripted(fails))
    with pytest.raises(RuntimeError):
        runner.sample(num_timesteps=10)
    assert runner.metrics.peek("num_env_steps_sampled") == 7 and seen == [2, 4, 6, 8, 10, 12, 14]
    runner.sample(num_timesteps=2)
    assert seen[-1] == 18 and runner.get_metrics()["num_env_steps_sampled"] == 9
    runner.stop()


def test_metrics_have_values_of_callbacks_next_to_the_counts():
    def look(metrics_logger, **kwargs):
        metrics_logger.log_value(("agent_steps", "mine"), 3, reduce="sum")
        metrics_logger.log_value("weights_seq_no", 8, reduce="item")

    runner = make_runner(callbacks_on_sample_end=look)
    runner.sample(num_timesteps=20)
    for found in (runner.metrics.peek(), runner.get_metrics()):
        assert found["agent_steps"] == {"a": 10.0, "b": 10.0, "mine": 3} and found["weights_seq_no"] == 8
    assert runner.metrics.peek("num_episodes", compile=False) == [0] and "num_episodes" in runner.metrics
    with pytest.raises(ValueError, match="no throughput"):
        runner.metrics.peek("num_episodes", throughput=True)
    with pytest.raises(KeyError, match="did you mean 'num_episodes'"):
        runner.metrics.peek("num_episode")
    runner.stop()


def test_keys_do_not_come_and_go():
    runner = make_runner()
    reports = [runner.get_metrics()]
    for n in (5, 10, 3):
        runner.sample(num_timesteps=n)
        reports.append(runner.get_metrics())
    assert len({tuple(report) for report in reports}) == 1
    values = [report["episode_return_mean"] for report in reports]
    assert [math.isnan(value) for value in values] == [True, True, False, False]
    assert math.isnan(reports[1]["time_between_sampling"]) and reports[2]["time_between_sampling"] > 0
    assert reports[1]["agent_episode_returns_mean"] == {}
    runner.stop()


# Times.


def test_pauses_are_between_calls_and_not_in_episodes(monkeypatch):
    paused = 0.0
    for module in (log, sampling):
        monkeypatch.setattr(module, "perf_counter", lambda: time.perf_counter() + paused)
    runner = make_runner(env_config={"length": 9})
    runner.sample(num_timesteps=3)
    for _ in range(2):
        paused += 1000.0  # seconds
        (chunk,) = runner.sample(num_timesteps=3)
    report = runner.get_metrics()
    assert 0 < report["episode_duration_sec_mean"] < 500 < 1000 < report["time_between_sampling"] < 1500
    assert 0 < chunk.get_duration_s() < 500
    runner.stop()


@pytest.mark.parametrize("options", [{}, {"disable_env_checking": True}, {"worker_num_splits": 2}])
def test_no_stage_takes_no_time_in_reports_of_a_few_ticks(options):
    """Clocks run in a few ticks only, and in some reports in none."""
    runner = make_runner(num_envs_per_env_runner=2, **options)
    for _ in range(40):
        runner.sample(num_timesteps=4)
        report = runner.get_metrics()
        stages = report["stage_time_ms"]
        assert min(stages[stage] for stage in ("env", "scatter", "send")) > 0
        assert report["env_step_timer"] * 1e3 == pytest.approx(stages["env"])
        assert report["mean_env_wait_ms"] == stages["env"]
    runner.stop()

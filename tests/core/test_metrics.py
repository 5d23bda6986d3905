"""Custom values from callbacks, and the times of stages."""

import pytest
from support.actors import make_runner

from fastmarl.core.runner.metrics import NAMED, OTHERS, MetricsLogger, RunnerMetrics


def test_reductions_windows_and_nesting():
    logger = MetricsLogger()
    for value in (1.0, 2.0, 6.0):
        logger.log_value("mean", value)
        logger.log_value("last two", value, window=2)
        logger.log_value("sum", value, reduce="sum")
        logger.log_value("highest", value, reduce="max", clear_on_reduce=True)
        logger.log_value(("nested", "lifetime"), value, reduce="lifetime_sum")
    logger.log_dict({"a": 1.0, "b": {"c": 2.0}}, key="dict")
    assert logger.peek("mean") == 3
    assert logger.peek("nothing", default=7.0) == 7
    assert logger.reduce() == {
        "mean": 3,
        "last two": 4,
        "sum": 9,
        "highest": 6,
        "nested": {"lifetime": 9},
        "dict": {"a": 1, "b": {"c": 2}},
    }
    # Sums and extremes begin anew with each report, means go on.
    assert logger.reduce() == {"mean": 3, "last two": 4, "nested": {"lifetime": 9}, "dict": {"a": 1, "b": {"c": 2}}}


def test_unknown_reduction():
    with pytest.raises(ValueError, match="'median'"):
        MetricsLogger().log_value("x", 1.0, reduce="median")


def test_a_report_does_not_grow_with_ids_that_never_end():
    from fastmarl.core.episodes.summaries import CallSummary
    from fastmarl.core.runner.goals import Goal

    metrics = RunnerMetrics(window=1)
    for first in range(0, 3 * NAMED, 1000):
        metrics.add_call(Goal(), CallSummary(agent_steps=dict.fromkeys(range(first, first + 1000), 2)))
    steps = metrics.report(0, [])["num_agent_steps_sampled"]
    assert len(steps) == NAMED + 1
    assert steps["5"] == 2
    assert sum(steps.values()) == 2 * 13_000
    assert steps[OTHERS] == 2 * (13_000 - NAMED)


def test_increments_of_several_runners_make_one_report():
    from fastmarl.core.episodes.summaries import CallSummary, EpisodeSummary
    from fastmarl.core.runner.goals import Goal

    def call(metrics, n_episodes, value):
        ended = [EpisodeSummary(5, 0.1, {"a": value}, {"a": 5}, {"p": value}) for _ in range(n_episodes)]
        goal = Goal()
        goal.ticks, goal.env_steps = 10, 20
        metrics.add_call(goal, CallSummary(n_episodes, ended, {"a": 7}, {"p": 7}, 0.5))
        metrics.seconds["sample"] += value
        metrics.failures["failures"] += 1
        metrics.logger.log_value("sum", value, reduce="sum")

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
    assert report == expected
    assert report["episode_return_mean"] == 4 and report["sample"] == 28 / 6 and report["sum"] == 28
    assert report["num_agent_steps_sampled"] == {"a": 42} and report["num_env_failures"] == 6
    assert not runners[0].logger.journal and runners[0].logger.peek("sum") is None  # nothing piles up


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

"""The standalone MetricsLogger against RLlib's: the same calls, the same reports and peeks."""

import math
import random
import warnings
from collections import deque

import numpy as np
import pytest
import torch
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger as RLlibLogger

from fastmarl.runner.metrics.metrics_logger import MetricsLogger

KEYS = {  # key -> options
    "default": {},
    "window": {"window": 3},
    ("nested", "ema"): {"reduce": "ema", "ema_coeff": 0.3},
    ("nested", "mean"): {"reduce": "mean"},
    ("nested", "deep", "mean"): {"reduce": "mean", "window": 4},
    "min": {"reduce": "min"},
    "min of 3": {"reduce": "min", "window": 3},
    "max": {"reduce": "max"},
    "max of 3": {"reduce": "max", "window": 3},
    "sum": {"reduce": "sum"},
    "sum of 3": {"reduce": "sum", "window": 3},
    "not cleared": {"reduce": "sum", "clear_on_reduce": False},
    ("nested", "lifetime"): {"reduce": "lifetime_sum"},
    "measured": {"reduce": "lifetime_sum", "with_throughput": True},
    "measured sum": {"reduce": "sum", "with_throughput": True},
    "percentiles": {"reduce": "percentiles", "window": 5},
    "quartiles": {"reduce": "percentiles", "window": 5, "percentiles": [25, 50, 75]},
    "item": {"reduce": "item"},
    "series": {"reduce": "item_series", "window": 3},
}
WITHOUT_NAN = ("percentiles", "quartiles")


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def same(ours, theirs):
    if isinstance(theirs, dict):
        theirs = {key: value for key, value in theirs.items() if value != {}}  # remain of keys that were deleted
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, deque)):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    if theirs is None or ours is None:
        return ours is theirs
    ours, theirs = float(ours), float(theirs)
    return math.isclose(ours, theirs, rel_tol=1e-12, abs_tol=1e-12) or (math.isnan(ours) and math.isnan(theirs))


def value_for(key, rng):
    value = rng.choice([rng.randint(-5, 5), rng.uniform(-3, 3)])
    if rng.random() < 0.1 and key not in WITHOUT_NAN and "sum" not in key:
        return math.nan
    return rng.choice([value, value, np.float64(value), np.array(value), np.int64(3)])


def log_something(pair, rng, but=()):
    for _ in range(rng.randint(1, 25)):
        key = rng.choice([key for key in KEYS if key not in but])
        value = value_for(key, rng)
        for logger in pair:
            logger.log_value(key, value, **KEYS[key])
    if rng.random() < 0.5:
        values = {"a": rng.random(), "b": {"c": rng.randint(0, 9)}}
        options = rng.choice([{"window": 2}, {"window": 2, "reduce": "min"}])
        for logger in pair:
            logger.log_dict(values, key=("dict", options.get("reduce", "mean")), **options)


def assert_same_peeks(pair, rng, **options):
    ours, theirs = pair
    assert same(ours.peek(**options), theirs.peek(**options))
    for key in rng.sample(list(KEYS), 5):
        assert (key in ours) == (key in theirs)
        assert same(ours.peek(key, default=77, **options), theirs.peek(key, default=77, **options)), key


@pytest.mark.thinned(2)
@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_reports_and_peeks_of_random_calls(seed, root):
    rng = random.Random(seed)
    pair = MetricsLogger(root=root), RLlibLogger(root=root)
    for _ in range(12):
        log_something(pair, rng)
        assert_same_peeks(pair, rng)
        assert_same_peeks(pair, rng, compile=False)
        if rng.random() < 0.3:
            key = rng.choice(list(KEYS))
            for logger in pair:
                logger.delete(*((key,) if isinstance(key, str) else key), key_error=False)
        if rng.random() < 0.3:
            states = [logger.get_state() for logger in pair]
            pair = MetricsLogger(root=root), RLlibLogger(root=root)
            for logger, state in zip(pair, states, strict=True):
                logger.set_state(state)
        if rng.random() < 0.6:
            ours, theirs = (logger.reduce(compile=True) for logger in pair)
            assert same(ours, theirs)
        assert_same_peeks(pair, rng)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_aggregation_of_several_loggers(seed, root):
    """Leaves report to a logger, which may report to another one."""
    rng = random.Random(seed)
    leaves = [(MetricsLogger(), RLlibLogger()) for _ in range(3)]
    above, top = (MetricsLogger(root=root), RLlibLogger(root=root)), (MetricsLogger(root=True), RLlibLogger(root=True))
    key = rng.choice([None, "env_runners", ("a", "b")])
    for _ in range(8):
        for leaf in leaves:
            log_something(leaf, rng, but=() if root else ("measured sum",))  # RLlib's raises there
        reporting = rng.sample(leaves, rng.randint(1, 3))
        for side in range(2):
            reports = [leaf[side].reduce() for leaf in reporting]
            # Of several items at once RLlib takes none; here the last one counts.
            several = [{name: each for name, each in report.items() if name != "item"} for report in reports]
            above[side].aggregate(several, key=key)
        assert same(above[0].peek(), above[1].peek())
        assert same(*(logger.peek(key, latest_merged_only=True) for logger in above))
        if rng.random() < 0.5:
            for side in range(2):
                top[side].aggregate([above[side].reduce()])
            assert same(top[0].peek(), top[1].peek())
        if rng.random() < 0.3:
            assert same(*(logger.reduce(compile=True) for logger in top))


def test_the_last_of_several_items_counts_where_rllib_has_none():
    leaves = [MetricsLogger(), MetricsLogger()]
    for number, leaf in enumerate(leaves):
        leaf.log_value("item", number, reduce="item")
    above = MetricsLogger(root=True)
    above.aggregate([leaf.reduce() for leaf in leaves])
    assert above.peek("item") == 1


@pytest.mark.parametrize("reduce", ["mean", "min", "max", "sum", "lifetime_sum", "ema", "percentiles", "item"])
def test_tensors_are_numbers(reduce):
    pair = MetricsLogger(root=True), RLlibLogger(root=True)
    for logger in pair:
        for value in (2.0, 3.5):
            logger.log_value("x", torch.tensor(value, dtype=torch.float64, requires_grad=True), reduce=reduce)
    assert same(pair[0].peek("x"), pair[1].peek("x"))


@pytest.mark.parametrize(
    "options",
    [
        {"reduce": "median"},
        {"reduce": "ema", "window": 3},
        {"reduce": "mean", "ema_coeff": 0.1},
        {"reduce": "mean", "percentiles": [50]},
        {"reduce": "lifetime_sum", "window": 3},
        {"reduce": "max", "with_throughput": True},
    ],
)
def test_options_that_rllib_refuses_are_refused(options):
    for logger in (MetricsLogger(), RLlibLogger()):
        with pytest.raises((ValueError, TypeError)):
            logger.log_value("x", 1.0, **options)


def test_throughputs_are_under_the_names_of_rllib():
    reports = []
    for logger in (MetricsLogger(root=True), RLlibLogger(root=True)):
        for _ in range(3):
            logger.log_value(("a", "lifetime"), 5, reduce="lifetime_sum", with_throughput=True)
            logger.log_value(("a", "sum"), 5, reduce="sum", with_throughput=True)
        measured = logger.peek(("a", "lifetime"), throughput=True)
        assert min(measured.values()) > 0
        assert logger.peek(("a", "sum"), throughput=True) > 0
        assert logger.peek("b", default=3, throughput=True) == 3
        of_all, report = logger.peek(throughput=True), logger.compile()
        assert all(isinstance(each, float) for each in [*measured.values(), of_all["a"]["sum_throughput"]])
        reports.append([sorted(measured), sorted(of_all["a"]), sorted(report["a"]), report["a"]["lifetime"]])
    assert reports[0] == reports[1]


def test_nothing_under_a_key_is_a_key_error():
    for logger in (MetricsLogger(), RLlibLogger()):
        with pytest.raises(KeyError):
            logger.peek("x")
        assert logger.peek("x", default=5) == 5 and logger.peek(("a", "b"), 0) == 0
        with pytest.raises(KeyError):
            logger.delete("x")


def test_times_of_blocks():
    for logger in (MetricsLogger(), RLlibLogger()):
        with logger.log_time(("timers", "x")):
            pass
        assert logger.peek(("timers", "x")) > 0
        logger.log_time("begun").__enter__()
        assert math.isnan(logger.reduce(compile=True)["begun"])


def test_lists_in_dicts_are_nested_by_index():
    for logger in (MetricsLogger(), RLlibLogger()):
        logger.log_dict({"x": {"y": [1.0, 2.0]}}, key="z")
        assert logger.peek() == {"z": {"x": {"y": {0: 1.0, 1: 2.0}}}}

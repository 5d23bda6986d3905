"""The bulk metrics against RLlib's own logging of the same events, one by one."""

import copy
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tree
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import EnvToModulePipeline
from ray.rllib.connectors.module_to_env import ModuleToEnvPipeline
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.rllib.utils.metrics.metrics_logger import DEFAULT_STATS_CLS_LOOKUP, MetricsLogger
from ray.rllib.utils.metrics.stats import StatsBase
from support.random_cases import number_of_cases

from fastmarl.rllib.metrics import COUNTERS, RLlibMetrics, add_ones, push_all, push_repeated
from fastmarl.rllib.sampling.internals import Internals
from fastmarl.rllib.store.records import CallCounts, EpisodeNumbers

AGENTS: tuple[Hashable, ...] = ("a", "b", 1, "1", ("team", 0), 2)
CLOCK = ("timer", "through", "duration")
STRAY = ("connector_pipeline_timer", "timers")  # where RLlib logs its connectors' times at resets
OUTSIDE = ("weights_seq_no", "sample", "time_between_sampling", "env_reset_timer")  # logged by other parts of a runner


# What RLlib logs, event by event.


class Nothing(ConnectorV2):
    """A connector piece, for its name."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        return batch


class SendHTTPNowhere2(Nothing):
    """Is not trivial to write in snake case."""


def make_runner(num_env_runners: int = 0, smoothing: int = 3, lookup: Any = DEFAULT_STATS_CLS_LOOKUP) -> Any:
    """As much of a runner as logging needs. `inc` sums what its Prometheus counters are given."""
    inc: Counter = Counter()
    return SimpleNamespace(
        metrics=MetricsLogger(root=False, stats_cls_lookup=lookup),
        config=SimpleNamespace(metrics_num_episodes_for_smoothing=smoothing, num_env_runners=num_env_runners),
        inc=inc,
        _env_to_module=EnvToModulePipeline(connectors=[Nothing(), SendHTTPNowhere2(), Nothing()]),
        _module_to_env=ModuleToEnvPipeline(connectors=[SendHTTPNowhere2()]),
        _metrics_num_try_env_step="tried",
        _metrics_num_env_steps_sampled="sampled",
        _log_env_steps=lambda metric, num_steps: inc.update({metric: num_steps}),
    )


@dataclass(frozen=True)
class Step:
    """One env's step: whom it observed, and whether its episode is over."""

    observed: tuple[Hashable, ...]
    is_done: bool = False


@dataclass(frozen=True)
class Tick:
    """A step of all envs. `asks`: the modules were asked for actions. `length`: of the episodes under way after it."""

    steps: tuple[Step, ...]
    asks: bool = True
    length: int = 0


@dataclass(frozen=True)
class Call:
    """Events in a call of sample(), and then in one of get_metrics() unless `episodes` is None."""

    ticks: tuple[Tick, ...] = ()
    resets: int = 0
    failures: int = 0
    episodes: tuple[EpisodeNumbers, ...] | None = None


def module_for(agent_id: Hashable) -> str:
    return f"p{AGENTS.index(agent_id) % 2}"


def log_as_rllib(runner: Any, call: Call) -> Any:
    """Log as RLlib's runner does, by its own methods where it has them. Returns the report, if one is asked for."""
    metrics = runner.metrics
    for _ in range(call.resets):
        _run(runner._env_to_module, metrics, 0, metrics_key_prefix=("env_to_module_connector",))
    for tick in call.ticks:
        if tick.asks:
            metrics.log_value("rlmodule_inference_timer", 0.5)
            _run(runner._module_to_env, metrics, 0, metrics_prefix_key=("module_to_env_connector",))
        metrics.log_value("env_step_timer", 0.5)
        runner._log_env_steps(metric=runner._metrics_num_try_env_step, num_steps=1)
        for step in tick.steps:
            runner._log_env_steps(metric=runner._metrics_num_env_steps_sampled, num_steps=1)
            episode = SimpleNamespace(is_done=step.is_done, module_for=module_for)
            RLlibEnvRunner._increase_sampled_metrics(runner, 1, dict.fromkeys(step.observed), episode)
        _run(runner._env_to_module, metrics, tick.length, metrics_prefix_key=("env_to_module_connector",))
    for _ in range(call.failures):
        metrics.log_value("num_env_step_failures", 1, reduce="lifetime_sum")
    for one in call.episodes or ():
        numbers = one.length, one.episode_return, one.duration_s
        RLlibEnvRunner._log_episode_metrics(runner, *numbers, one.agent_returns, one.module_returns, one.agent_steps)
    return None if call.episodes is None else metrics.reduce()


def _run(pipeline: Any, metrics: MetricsLogger, length: int, **prefix: Any) -> None:
    pipeline(rl_module=None, batch={}, episodes=[range(length)], explore=True, metrics=metrics, **prefix)


def log_in_bulk(runner: Any, call: Call) -> Any:
    """Log the same by RLlibMetrics."""
    bulk, counts = RLlibMetrics(Internals(runner)), CallCounts(resets=call.resets, step_failures=call.failures)
    for tick in call.ticks:
        counts.ticks += 1
        counts.forwards += tick.asks
        counts.lengths.append(tick.length)
        for step in tick.steps:
            count(counts, step.observed, module_for, step.is_done)
    bulk.log_call(counts)
    bulk.log_episodes(call.episodes or ())
    return None if call.episodes is None else runner.metrics.reduce()


def log_singly(runner: Any, call: Call) -> Any:
    """Log as RLlib does, but the steps by RLlibMetrics, one by one."""
    bulk = RLlibMetrics(Internals(runner))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RLlibEnvRunner,
            "_increase_sampled_metrics",
            lambda _, n, observed, episode: bulk.log_step(observed, episode),
        )
        return log_as_rllib(runner, call)


def count(counts: CallCounts, observed: Any, module_for: Callable[[Any], str], is_done: bool) -> None:
    """Add one env's step."""
    counts.env_steps += 1
    counts.episodes += is_done
    for agent_id in observed:
        module_id = module_for(agent_id)
        counts.agent_observations[agent_id] = counts.agent_observations.get(agent_id, 0) + 1
        counts.module_observations[module_id] = counts.module_observations.get(module_id, 0) + 1


# What is compared.


def readings(stats: dict) -> dict[tuple, Any]:
    """Path -> class, settings and values. Of what a clock said not the values."""
    found = {}
    for path, one in tree.flatten_with_path(stats):
        assert isinstance(one, StatsBase)
        if is_clock(path):
            state = {
                name: value for name, value in one.get_state().items() if name.startswith(("is_", "window", "ema"))
            }
            found[path] = (type(one), repr(state))
        else:
            found[path] = (type(one), repr(one.get_state()), repr(one.peek()), vars(one).keys())
    return found


def values(stats: dict) -> dict[tuple, float]:
    """Path -> value of all but clocks, and 0 for counters that are NaN."""
    flat = {path: float(one.peek()) for path, one in tree.flatten_with_path(stats) if not is_clock(path)}
    return {path: 0.0 if path[0] in COUNTERS and np.isnan(value) else value for path, value in flat.items()}


def is_clock(path: tuple) -> bool:
    return any(word in str(key) for key in path for word in CLOCK)


def without(report: dict, names: tuple[str, ...]) -> dict:
    return {key: value for key, value in report.items() if key not in names}


def keys_in_order(report: Any) -> Any:
    return [(key, keys_in_order(value)) for key, value in report.items()] if isinstance(report, dict) else None


# The events of some calls.

observed = st.lists(st.sampled_from(AGENTS), unique=True, max_size=4).map(tuple)
steps = st.builds(Step, observed, st.sampled_from([True, False, False, False]))
ticks = st.builds(Tick, st.lists(steps, max_size=3).map(tuple), st.booleans(), st.integers(0, 1000))
rewards = st.one_of(st.floats(-1e3, 1e3), st.integers(-5, 5), st.floats(-9, 9, width=32).map(np.float32))
agent_names = st.sampled_from([str(agent_id) for agent_id in AGENTS])
episodes = st.builds(
    EpisodeNumbers,
    length=st.integers(1, 500),
    episode_return=rewards,
    duration_s=st.floats(0, 10),
    agent_returns=st.dictionaries(agent_names, rewards, max_size=4),
    agent_steps=st.dictionaries(agent_names, st.integers(1, 99), max_size=4),
    module_returns=st.dictionaries(st.sampled_from(["p0", "p1"]), rewards, max_size=2),
)
finished = st.lists(episodes, max_size=8).map(tuple)
calls = st.builds(
    Call, st.lists(ticks, max_size=6).map(tuple), st.integers(0, 1), st.integers(0, 2), st.none() | finished
)
histories = st.lists(calls, min_size=1, max_size=5)


@given(history=histories, num_env_runners=st.integers(0, 3), smoothing=st.integers(1, 7))
@settings(max_examples=number_of_cases(12))
def test_reports_are_equal(history: list[Call], num_env_runners: int, smoothing: int) -> None:
    theirs, ours = make_runner(num_env_runners, smoothing), make_runner(num_env_runners, smoothing)
    for call in [*history, Call(episodes=())]:
        want, got = log_as_rllib(theirs, call), log_in_bulk(ours, call)
        assert readings(without(theirs.metrics.stats, STRAY)) == readings(ours.metrics.stats)
        if want is not None:
            assert readings(without(want, STRAY)) == readings(got)
            assert sorted(keys_in_order(without(want, STRAY))) == sorted(keys_in_order(got))
    assert theirs.inc == ours.inc


@given(history=histories)
@settings(max_examples=number_of_cases(12))
def test_reports_are_equal_step_by_step(history: list[Call]) -> None:
    theirs, ours = make_runner(), make_runner()
    for call in [*history, Call(episodes=())]:
        want, got = log_as_rllib(theirs, call), log_singly(ours, call)
        assert readings(theirs.metrics.stats) == readings(ours.metrics.stats)
        if want is not None:
            assert readings(want) == readings(got)
            assert keys_in_order(want) == keys_in_order(got)


@given(together=st.lists(st.tuples(calls, calls, calls), min_size=1, max_size=4), n=st.integers(1, 3))
@settings(max_examples=number_of_cases(12))
def test_aggregates_are_equal(together: list[tuple[Call, ...]], n: int) -> None:
    """Reports of several runners, at the root and reduced there."""
    theirs, ours = [make_runner(n) for _ in range(n)], [make_runner(n) for _ in range(n)]
    roots = MetricsLogger(root=True), MetricsLogger(root=True)
    for each in together:
        reported = [replace(call, episodes=call.episodes or ()) for call in each[:n]]
        want = [log_as_rllib(runner, call) for runner, call in zip(theirs, reported, strict=True)]
        got = [log_in_bulk(runner, call) for runner, call in zip(ours, reported, strict=True)]
        roots[0].aggregate([without(report, STRAY) for report in want], key="env_runners")
        roots[1].aggregate(got, key="env_runners")
        assert readings(roots[0].stats) == readings(roots[1].stats)
        assert readings(roots[0].reduce()) == readings(roots[1].reduce())


@given(history=histories)
@settings(max_examples=number_of_cases(12))
def test_counters_stay_alive(history: list[Call]) -> None:
    """With keep_counters_alive() everything is as without it, except that no counter is NaN, here and at the root."""
    theirs, ours = make_runner(), make_runner()
    roots = MetricsLogger(root=True), MetricsLogger(root=True)
    for call in history:
        want = log_as_rllib(theirs, replace(call, episodes=call.episodes or ()))
        log_in_bulk(ours, replace(call, episodes=None))
        RLlibMetrics(Internals(ours)).log_episodes(call.episodes or ())
        RLlibMetrics(Internals(ours)).keep_counters_alive()
        got = ours.metrics.reduce()
        counters = [one for path, one in tree.flatten_with_path(got) if path[0] in COUNTERS]
        assert all(isinstance(one.peek(), int | np.int64) for one in counters)
        for root, report in zip(roots, (want, got), strict=True):
            root.aggregate([without(report, STRAY)])
        np.testing.assert_equal(values(without(want, STRAY)), values(got))
        np.testing.assert_equal(values(roots[0].reduce()), values(roots[1].reduce()))


@given(together=st.lists(st.tuples(calls, calls), min_size=1, max_size=3), rng=st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_the_order_of_names_means_nothing_to_an_algorithm(together: list[tuple[Call, ...]], rng: Any) -> None:
    """The order differs between bulk reports and RLlib's, but an Algorithm reads them in the order of a set."""
    runners = make_runner(2), make_runner(2)
    roots = MetricsLogger(root=True), MetricsLogger(root=True)
    for each in together:
        asked = [replace(call, episodes=call.episodes or ()) for call in each]
        reports = [log_in_bulk(runner, call) for runner, call in zip(runners, asked, strict=True)]
        roots[0].aggregate(copy.deepcopy(reports), key="env_runners")
        roots[1].aggregate([_shuffled(report, rng) for report in reports], key="env_runners")
        for want, got in ((roots[0].stats, roots[1].stats), (roots[0].reduce(), roots[1].reduce())):
            assert states(want) == states(got)


def _shuffled(report: Any, rng: Any) -> Any:
    """With the names in another order, at all depths."""
    if not isinstance(report, dict):
        return report
    names = [*report]
    rng.shuffle(names)
    return {name: _shuffled(report[name], rng) for name in names}


def states(stats: dict) -> dict[tuple, str]:
    """Path -> all there is, what clocks said included."""
    return {path: f"{type(one)} {one.get_state()} {one.peek()}" for path, one in tree.flatten_with_path(stats)}


def test_keys_begin_when_they_have_something_to_say() -> None:
    runner = make_runner()
    assert log_in_bulk(runner, Call(episodes=())) == {}
    assert [*log_in_bulk(runner, Call(resets=1, episodes=()))] == [
        "env_to_module_sum_episodes_length_in",
        "env_to_module_sum_episodes_length_out",
    ]
    report = log_in_bulk(runner, Call((Tick((Step(("a",)),)),), episodes=()))
    assert "num_episodes" not in report and "num_env_step_failures" not in report
    assert "num_episodes" in log_in_bulk(runner, Call((Tick((Step(("a",), is_done=True),)),), episodes=()))


def test_times_are_those_of_the_stages() -> None:
    runner = make_runner()
    counts = CallCounts(ticks=4, forwards=2, lengths=[0] * 4)
    counts.seconds.update(connect=1.0, forward=3.0, act=5.0, env_step=8.0)
    RLlibMetrics(Internals(runner)).log_call(counts)
    assert runner.metrics.peek("rlmodule_inference_timer") == 1.5
    assert runner.metrics.peek("env_step_timer") == 2.0
    assert runner.metrics.peek("env_to_module_connector") == {
        "connector_pipeline_timer": 0.25,
        "timers": {"connectors": {"nothing": 0.0, "send_http_nowhere2": 0.0}},
    }
    assert runner.metrics.peek(("module_to_env_connector", "connector_pipeline_timer")) == 2.5


def test_survives_a_logger_that_was_emptied() -> None:
    runner = make_runner()
    call = Call((Tick((Step(("a", "b")),)),), episodes=())
    log_in_bulk(runner, call)
    runner.metrics.reset()
    assert log_in_bulk(runner, call)["num_agent_steps_sampled"]["a"].peek() == 1


# Many pushes at once.


class Doubling(DEFAULT_STATS_CLS_LOOKUP["sum"]):  # type: ignore[misc]
    """A user's own class."""

    stats_cls_identifier = "sum"

    def push(self, value: Any) -> None:
        super().push(2 * value)


class Halving(DEFAULT_STATS_CLS_LOOKUP["ema"]):  # type: ignore[misc]
    stats_cls_identifier = "ema"

    def push(self, value: Any) -> None:
        super().push(value / 2)


def make_stats() -> list[StatsBase]:
    """All classes, with several settings."""
    cls = {**DEFAULT_STATS_CLS_LOOKUP, "doubling": Doubling, "halving": Halving}
    windowed = ("mean", "min", "max", "sum", "doubling", "percentiles", "item_series")
    return [
        *(cls[name](window=window) for name in windowed for window in (None, 1, 3, 100)),
        *(cls[name](ema_coeff=coeff) for name in ("ema", "halving") for coeff in (0.01, 0.3, 1.0)),
        *(cls["lifetime_sum"](with_throughput=on) for on in (False, True)),
        cls["item"](),
    ]


numbers = st.one_of(
    st.floats(-1e6, 1e6), st.integers(-9, 9), st.floats(-9, 9, width=32).map(np.float32), st.just(np.nan)
)


@given(bursts=st.lists(st.lists(numbers, max_size=8) | st.none(), max_size=5))
@settings(max_examples=number_of_cases(12))
@pytest.mark.filterwarnings("ignore:All-NaN")
def test_push_all_is_as_many_pushes(bursts: list[list | None]) -> None:
    """None stands for a report."""
    for singly, at_once in zip(make_stats(), make_stats(), strict=True):
        takes_nan = not isinstance(singly, DEFAULT_STATS_CLS_LOOKUP["percentiles"])
        for burst in bursts:
            pushed = [value for value in burst or [] if takes_nan or not np.isnan(value)]
            for value in pushed:
                singly.push(value)
            push_all(at_once, pushed)
            assert_same(singly, at_once, reports=burst is None)


@given(bursts=st.lists(st.integers(1, 9) | st.none(), max_size=6))
@settings(max_examples=number_of_cases(12))
def test_add_ones_is_as_many_pushes(bursts: list[int | None]) -> None:
    for singly, at_once in zip(make_stats(), make_stats(), strict=True):
        for burst in bursts:
            if burst is not None:
                for _ in range(burst):
                    singly.push(1)
                add_ones(at_once, burst)
            assert_same(singly, at_once, reports=burst is None)


@pytest.mark.parametrize("before", [np.nan, -0.25, 5, np.float32(0.1), np.int64(3)])
def test_add_ones_to_values_logged_before(before: Any) -> None:
    singly, at_once = DEFAULT_STATS_CLS_LOOKUP["sum"](), DEFAULT_STATS_CLS_LOOKUP["sum"]()
    for stats in (singly, at_once):
        stats.push(before)
    for _ in range(3):
        singly.push(1)
    add_ones(at_once, 3)
    assert_same(singly, at_once, reports=False)


@given(bursts=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 300)), max_size=4))
@settings(max_examples=number_of_cases(12))
def test_push_repeated_is_nearly_as_many_pushes(bursts: list[tuple[float, int]]) -> None:
    for singly, at_once in zip(make_stats(), make_stats(), strict=True):
        for value, n in bursts:
            for _ in range(n):
                singly.push(value)
            push_repeated(at_once, value, n)
        if bursts and not isinstance(singly.peek(), dict | list):
            np.testing.assert_allclose(at_once.peek(), singly.peek(), rtol=1e-9, atol=1e-12)


def assert_same(want: Any, got: Any, *, reports: bool) -> None:
    assert repr(want.get_state()) == repr(got.get_state())
    if reports:
        assert repr(want.reduce(compile=False).get_state()) == repr(got.reduce(compile=False).get_state())
        assert_same(want, got, reports=False)


# A real runner.


class CountingRunner(RLlibEnvRunner):
    """RLlib's runner, which logs as ever; what it logs is counted beside that."""

    def __init__(self, config: Any):
        self.counts, self.numbers = CallCounts(), []
        super().__init__(config=config)
        self._env_to_module = Watched(self._env_to_module, self._note_connected)
        self._module_to_env = Watched(self._module_to_env, self._note_asked)

    def _note_connected(self, episodes: list, metrics: Any, metrics_prefix_key: Any = None, **kwargs: Any) -> None:
        if metrics is not None and metrics_prefix_key is not None:
            self.counts.lengths.append(sum(map(len, episodes)))

    def _note_asked(self, **kwargs: Any) -> None:
        self.counts.forwards += 1

    def _reset_envs(self, *args: Any) -> None:
        self.counts.resets += 1
        super()._reset_envs(*args)

    def _try_env_step(self, actions: Any) -> Any:
        self.counts.ticks += 1
        return super()._try_env_step(actions)

    def _increase_sampled_metrics(self, num_steps: int, next_obs: dict, episode: Any) -> int:
        count(self.counts, next_obs, episode.module_for, episode.is_done)
        return super()._increase_sampled_metrics(num_steps, next_obs, episode)

    def _log_episode_metrics(self, *args: Any) -> None:
        length, total, seconds, agents, modules, agent_steps = args
        self.numbers.append(EpisodeNumbers(length, total, seconds, agents, agent_steps, modules))
        super()._log_episode_metrics(*args)


class Watched:
    """A pipeline that reports its calls to `note`."""

    def __init__(self, pipeline: Any, note: Callable[..., None]):
        self._pipeline, self._note = pipeline, note

    def __call__(self, **kwargs: Any) -> Any:
        self._note(**kwargs)
        return self._pipeline(**kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("amount", "calls"), [("num_timesteps", (1, 40, 15, 0, 60)), ("num_episodes", (1, 5, 0, 2))])
def test_report_of_a_real_runner(amount: str, calls: tuple[int, ...]) -> None:
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 3})
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode: f"p{agent_id % 2}")
        .env_runners(num_envs_per_env_runner=2)
        .reporting(metrics_num_episodes_for_smoothing=3)
        .debugging(seed=3)
    )
    theirs, ours = CountingRunner(config), make_runner()
    ours.config, ours._env_to_module, ours._module_to_env = config, theirs._env_to_module, theirs._module_to_env
    bulk = RLlibMetrics(Internals(ours))
    for n in calls:
        theirs.counts, theirs.numbers = CallCounts(), []
        theirs.sample(**{amount: n})
        want = without(theirs.get_metrics(), STRAY + OUTSIDE)
        bulk.log_call(theirs.counts)
        bulk.log_episodes(theirs.numbers)
        got = ours.metrics.reduce()
        assert readings(want) == readings(got)
        assert keys_in_order(want) == keys_in_order(got)
    assert want["num_episodes_lifetime"].peek() > 0
    theirs.stop()
